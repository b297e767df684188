// Package story tells the main job as one run on real parts: a daemon drives
// Pi in a sandbox, is killed with SIGKILL in the middle of work, and another
// daemon goes on with the same turn. The demo prints it and the tests assert
// it; every flag of the report is computed from what was observed.
package story
