package e2e

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// hostListeners listen on each address of the host, by TCP and UDP, and count
// what reaches them.
type hostListeners struct {
	addresses []string
	abstract  string
	reached   atomic.Int64
	closers   []interface{ Close() error }
	done      sync.WaitGroup
}

func listenEverywhere(t *testing.T) *hostListeners {
	t.Helper()
	l := &hostListeners{}
	t.Cleanup(func() {
		for _, c := range l.closers {
			c.Close()
		}
		l.done.Wait()
	})
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range interfaces {
		ip := a.(*net.IPNet).IP
		if ip.IsLinkLocalUnicast() && ip.To4() == nil {
			continue // needs a zone
		}
		l.tcp(t, "tcp", net.JoinHostPort(ip.String(), "0"))
	}
	l.abstract = "@pss-probe-" + strings.ReplaceAll(l.addresses[0], ":", "-")
	l.tcp(t, "unix", l.abstract)
	return l
}

// tcp listens and, but for Unix sockets, on the same port by UDP.
func (l *hostListeners) tcp(t *testing.T, network, address string) {
	t.Helper()
	listener, err := net.Listen(network, address)
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return // the interface went meanwhile, or its address is not ready
	}
	if err != nil {
		t.Fatal(err)
	}
	l.closers = append(l.closers, listener)
	l.done.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			l.reached.Add(1)
			c.Close()
		}
	})
	if network == "unix" {
		return
	}
	l.addresses = append(l.addresses, listener.Addr().String())
	packets, err := net.ListenPacket("udp", listener.Addr().String())
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	l.closers = append(l.closers, packets)
	l.done.Go(func() {
		for {
			if _, _, err := packets.ReadFrom(make([]byte, 64)); err != nil {
				return
			}
			l.reached.Add(1)
		}
	})
}

// elsewhere are addresses of neighbours, of the cloud's metadata, and public
// ones, which no one may reach.
var elsewhere = []string{"169.254.169.254:80", "10.0.0.1:80", "192.168.0.1:53", "172.17.0.1:2375", "224.0.0.1:5353", "8.8.8.8:53", "[fe80::1]:80", "[fd00::1]:80", "[2001:4860:4860::8888]:53"}

// checkNetwork expects that nothing but the sandbox's own loopback is there
// (R18, R61).
func checkNetwork(ctx context.Context, t *testing.T, h *hostile) {
	l := listenEverywhere(t)
	for name, answer := range h.ask(ctx, t, "dial", append(l.addresses, elsewhere...)...) {
		protocol, address, _ := strings.Cut(name, " ")
		host := strings.Trim(address, "[]")
		if h, _, err := net.SplitHostPort(address); err == nil {
			host = h
		}
		want := "ENETUNREACH"
		if net.ParseIP(host).IsLoopback() {
			want = "ok" // its own loopback takes datagrams
			if protocol == "tcp" {
				want = "ECONNREFUSED"
			}
		}
		if answer != want && !(answer == "EHOSTUNREACH" && want == "ENETUNREACH") {
			t.Errorf("%s: %s, want %s", name, answer, want)
		}
	}
	compare(t, h.ask(ctx, t, "connect", l.abstract), same("ECONNREFUSED", l.abstract))
	if n := l.reached.Load(); n != 0 {
		t.Errorf("%d connections or datagrams reached the host", n)
	}
	// The listeners do count.
	c, err := net.Dial("tcp", l.addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Read(make([]byte, 1)) // until it was counted and closed
	if l.reached.Load() == 0 {
		t.Error("the listeners count nothing")
	}
}
