package clock

import "time"

// started has a reading of the monotonic clock, and time.Since uses it.
var started = time.Now()

// Now returns the time since the process began.
func Now() time.Duration { return time.Since(started) }
