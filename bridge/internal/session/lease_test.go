package session

import (
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/clock"
)

// R42: a lease that has run out is not renewed by what comes late; one that
// has not is renewed in full.
func TestLateMessageRenewsNothing(t *testing.T) {
	l := &lease{length: time.Millisecond}
	l.heard.Store(int64(clock.Now()))
	for !l.expired() {
		<-time.After(time.Millisecond)
	}
	l.renew()
	if !l.expired() {
		t.Error("an expired lease was renewed")
	}
	l = &lease{length: time.Hour}
	l.heard.Store(int64(clock.Now() - time.Minute))
	l.renew()
	if left := l.left(clock.Now()); left < time.Hour-30*time.Second || l.expired() {
		t.Errorf("%s are left of a lease that was renewed", left)
	}
	if forever := new(lease); forever.expired() {
		t.Error("a lease without an end has expired")
	}
}
