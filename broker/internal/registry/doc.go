// Package registry reads the operator's configuration: which runsc, rootfs and
// bridge to use, and what each deployment may do (R12). Everything that a
// client can name, and nothing else, stands in it. It leads a request's handle
// or path to a workspace, and knows what no workspace may overlap (R14).
package registry
