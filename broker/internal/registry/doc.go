// Package registry reads the operator's configuration: which runsc, rootfs and
// bridge to use, and what each deployment may do (R12). Everything that a
// client can name, and nothing else, stands in it.
package registry
