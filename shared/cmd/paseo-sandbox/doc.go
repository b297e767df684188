// Command paseo-sandbox is the command line of a daemon's user: it creates
// sessions, joins them with standard input and output, lists, inspects and
// stops them. It has no rights of its own beyond what the broker gives its
// user.
package main
