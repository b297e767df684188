// Package profile is the one place that knows what an agent's bytes mean:
// where a record ends, which records wait for an answer, and which inputs an
// agent can take. Everything else of the bridge carries bytes.
package profile
