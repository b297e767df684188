// Package record keeps one durable file for each session. It is written before
// the session's first side effect and removed after its last trace, so that a
// broker that died anywhere in between finds what to clean up (R32, R33). Beside
// them is the clock by which times in records are told (R35).
package record
