// The program of which each kind of line and function is counted.
package main

import "os"

/*
	Not

counted.
*/
const text = `one
two

four`

var needed = []int{CAP_CHOWN, CAP_SETUID}

const (
	CAP_CHOWN  = 0
	CAP_SETUID = 7
)

type list[T any] struct{ all []T }

func (l *list[T]) add(v T) { l.all = append(l.all, v) } // kept

//go:noinline
func (l list[T]) dead() int { // not kept: 3 lines
	return len(l.all)
}

// Inlined everywhere, and kept all the same.
func inlined(n int) int { return n + 1 }

func unused() { // not kept: 4 lines

	os.Exit(inlined(1))
	main()
}

func main() {
	var l list[map[string][]int]
	l.add(map[string][]int{"a": {inlined(len(os.Args))}})
	defer func() {
		// Inside of main.
		os.Stdout.WriteString(text)
	}()
	if needed[0] > len(l.all[0]) {
		return
	}
}
