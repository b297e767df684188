// Command paseo-sandbox-broker starts agent sessions in sandboxes for clients
// that may not do so themselves. It is the one resident process that runs as
// root (R2).
package main
