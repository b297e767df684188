// Command paseo-sandbox-bridge owns the pipes of one agent session and serves
// them to clients. Only the broker starts it: under an unprivileged user, with
// one packet socket as descriptor 3.
package main
