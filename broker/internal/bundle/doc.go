// Package bundle turns a typed description of a session into the OCI
// configuration that runsc reads (R15).
package bundle
