// Package custody adopts the descriptors of a session and wraps what the
// bridge does with them: positional reads and writes of its files, and splices
// between pipes and files. It checks each descriptor's type, access mode and
// blocking mode before it is used, and never changes one.
package custody
