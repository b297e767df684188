// Package session is the state machine of one session: it numbers output,
// keeps the writer's seat, takes inputs into custody, remembers what waits for
// an answer, and sees the agent's end. All of its state is recovered from the
// session's files, of which an empty set is the first case.
package session
