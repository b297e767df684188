// Package runsc starts and ends sandboxes with the runsc command (R2, R17).
package runsc
