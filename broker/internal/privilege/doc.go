// Package privilege gives up, for good, the capabilities that neither the
// broker nor runsc needs (capabilities(7)).
package privilege
