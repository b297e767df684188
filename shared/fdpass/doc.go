// Package fdpass moves messages and descriptors between two processes over a
// SOCK_SEQPACKET socketpair (unix(7), SCM_RIGHTS). A message and its
// descriptors are one packet: they arrive together or not at all.
package fdpass
