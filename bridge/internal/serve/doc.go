// Package serve speaks the bridge protocol with clients: it accepts
// connections of the allowed users, reads their requests, and writes answers
// and records at each client's own pace.
package serve
