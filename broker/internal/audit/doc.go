// Package audit writes the trail: one line for each decision of the broker and
// each thing that happens to a session, to the broker's log or to a file of
// its own (R19). Package trail reads such files.
package audit
