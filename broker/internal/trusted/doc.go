// Package trusted reads and makes files and folders that root alone can
// change, and refuses all others (R11, R12).
package trusted
