package flow

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// What is lost, repeated, moved, cut, changed or of another stream is found
// and named.
func TestCheckNamesTheFault(t *testing.T) {
	made := Stream{Name: 7}
	var lines [][]byte
	for range 200 {
		lines = append(lines, made.Next())
	}
	if all := bytes.Join(lines, nil); made.At != (Position{Lines: 200, Bytes: uint64(len(all))}) || bytes.Count(all, []byte("\n")) != 200 {
		t.Fatalf("the stream is at %+v after %d bytes", made.At, len(all))
	}
	other := Stream{Name: 8}
	changed := bytes.Clone(lines[9])
	changed[len(changed)-2]++
	if changed[len(changed)-2] == '\n' {
		changed[len(changed)-2]++
	}
	for name, c := range map[string]struct {
		lines [][]byte
		want  string
	}{
		"whole":    {lines, ""},
		"lost":     {slices.Concat(lines[:5], lines[7:]), "2 lines and "},
		"repeated": {slices.Concat(lines[:5], lines[4:]), "comes again, or late"},
		"moved":    {[][]byte{lines[0], lines[2], lines[1]}, "1 lines and "},
		"cut":      {slices.Concat(lines[:3], [][]byte{lines[3][:len(lines[3])-1]}), "instead of"},
		"changed":  {slices.Concat(lines[:9], [][]byte{changed}), "is another from byte"},
		"foreign":  {[][]byte{other.Next()}, "of stream 8"},
		"zeros":    {[][]byte{make([]byte, 100)}, "begins as no line"},
		"empty":    {[][]byte{{}}, "begins as no line"},
	} {
		s := Stream{Name: 7}
		var err error
		for _, line := range c.lines {
			if err = s.Check(line); err != nil {
				break
			}
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
