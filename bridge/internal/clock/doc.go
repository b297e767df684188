// Package clock tells the time that decides: the monotonic one, which nobody
// sets. What the bridge waits for, and for how long, must not depend on the
// wall clock.
package clock
