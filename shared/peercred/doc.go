// Package peercred captures who is at the other end of a Unix socket, as the
// kernel recorded it when the connection was made (SO_PEERCRED, unix(7)).
package peercred
