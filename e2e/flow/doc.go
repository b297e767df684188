// Package flow makes streams of lines that say themselves where they belong,
// and checks them: a line that is lost, repeated, moved or changed is named as
// such. An agent prints one such stream and reads another.
package flow
