// Package replay builds the frames that carry records to one client, straight
// from index and spool. There is no queue: a client is an offset.
package replay
