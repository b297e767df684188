// Package recipe says how the two artifacts are made: the runsc executable from
// its pinned module, and the Pi rootfs from Debian packages, a pinned Node and a
// locked Pi.
package recipe
