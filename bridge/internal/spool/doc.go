// Package spool takes one stream of the agent's output into its spool file,
// finds where records end, and frees what is no longer needed. The pump is
// the only one that touches the description that is spliced into.
package spool
