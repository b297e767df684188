// Package trail reads the audit's files in the order in which they were
// written, and goes on where they end (R19, R80). The broker does not link it.
package trail
