// Package playsystemd is for tests: it takes sd_notify(3)'s messages and keeps
// descriptors as systemd does. The real one is in package systemd of e2e.
package playsystemd
