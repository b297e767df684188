package session

import (
	"strings"
	"testing"
	"time"
)

// R19: a bridge that sends without end fills neither the log nor a processor,
// and its session is deleted all the same.
func TestBridgeFloods(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "flooding")
	s.eventually("a burst", func() bool { return strings.Count(s.log.String(), "bridge_error") >= requestBurst-1 })
	time.Sleep(2 * requestTime)
	if n := strings.Count(s.log.String(), "bridge_error"); n > 4*requestBurst {
		t.Errorf("%d lines within some seconds", n)
	}
	s.delete(m, info.Session)
}
