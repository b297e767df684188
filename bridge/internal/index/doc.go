// Package index keeps the index file: one fixed-size entry for each numbered
// record, at a place that follows from its sequence by arithmetic. It knows
// nothing of the records' bytes.
package index
