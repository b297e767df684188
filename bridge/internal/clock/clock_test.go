package clock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/clock"
)

// R42, R48: setting the clock a day back or forward changes nothing in the
// bridge, because no line of it looks at the wall clock: no instant is made
// from or turned into a date, which is what loses the monotonic reading
// (package time, "Monotonic Clocks").
func TestNoWallClockDecides(t *testing.T) {
	forbidden := map[string]bool{
		"Unix": true, "UnixNano": true, "UnixMilli": true, "UnixMicro": true, "Date": true, "Clock": true,
		"Format": true, "AppendFormat": true, "Parse": true, "Truncate": true, "Round": true, "UTC": true, "Local": true,
		"Gettimeofday": true, "ClockGettime": true, "CLOCK_REALTIME": true, "TFD_TIMER_ABSTIME": true,
	}
	files := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/rig/") {
			return err
		}
		files++
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			// A file is truncated too.
			if ok && forbidden[s.Sel.Name] && !strings.Contains(path, "custody/") && !isFile(s) {
				t.Errorf("%s: %s", set.Position(s.Pos()), s.Sel.Name)
			}
			return true
		})
		return nil
	})
	if err != nil || files < 20 {
		t.Fatalf("%d files: %v", files, err)
	}
}

// isFile reports whether the receiver is called file, or is a field of that
// name.
func isFile(s *ast.SelectorExpr) bool {
	switch x := s.X.(type) {
	case *ast.Ident:
		return x.Name == "file"
	case *ast.SelectorExpr:
		return x.Sel.Name == "file"
	}
	return false
}

func TestNow(t *testing.T) {
	before := clock.Now()
	<-time.After(time.Millisecond)
	if clock.Now() < before+time.Millisecond {
		t.Error("the clock stands still")
	}
}
