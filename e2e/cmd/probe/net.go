package main

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// dialTimeout bounds one connection; nothing should need it.
const dialTimeout = 3 * time.Second

// dial tries addresses by TCP, by UDP with a datagram, and with an echo request.
func dial(addresses []string) answers {
	a := answers{}
	for _, address := range addresses {
		c, err := net.DialTimeout("tcp", address, dialTimeout)
		if a["tcp "+address] = outcome(err); err == nil {
			c.Close()
		}
		if c, err = net.DialTimeout("udp", address, dialTimeout); err == nil {
			_, err = c.Write([]byte("probe"))
			c.Close()
		}
		a["udp "+address] = outcome(err)
		host, _, err := net.SplitHostPort(address)
		if ip := net.ParseIP(host).To4(); err == nil && ip != nil {
			a["icmp "+host] = outcome(echo(ip))
		}
	}
	return a
}

// echo sends an ICMP echo request, which needs no privilege (icmp(7)).
func echo(ip net.IP) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request := []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}
	return unix.Sendto(fd, request, 0, &unix.SockaddrInet4{Addr: [4]byte(ip)})
}
