// Package journal keeps what a session has promised to its clients:
// control.log, whose entries are commits, and input.data, which holds the
// bytes of accepted inputs. Its files outlive the process; see CUSTODY.md.
package journal
