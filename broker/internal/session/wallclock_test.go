package session

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// wallClock are the names by which an instant is made from or turned into a
// date, which loses its monotonic reading (package time, "Monotonic Clocks"),
// and where a date is kept.
var wallClock = map[string]bool{
	"Unix": true, "UnixNano": true, "UnixMilli": true, "UnixMicro": true, "Date": true, "Format": true, "AppendFormat": true,
	"UTC": true, "Local": true, "Round": true, "ModTime": true, "CreatedAt": true,
	"Gettimeofday": true, "CLOCK_REALTIME": true, "CLOCK_REALTIME_COARSE": true, "CLOCK_TAI": true, "TFD_TIMER_ABSTIME": true,
}

// datesAreTold are the places, and the names where not all, that tell people a
// date and decide nothing by it.
var datesAreTold = map[string]string{
	"cmd/broker-admin/":           "",          // what an operator reads, and asks the audit for
	"internal/audit/":             "",          // when something happened
	"internal/rootfs/":            "",          // the times of imported files, kept as they are
	"internal/session/manager.go": "UnixMilli", // when a session was made, told to clients
	"internal/record/record.go":   "CreatedAt", // the same
}

func isTold(file, name string) bool {
	for place, only := range datesAreTold {
		if strings.HasPrefix(file, place) && (only == "" || only == name) {
			return true
		}
	}
	return false
}

// R31 R33: setting the clock a day back or forward changes nothing that the
// broker decides: outside of those places nothing looks at the wall clock.
// Deadlines of connections and waits have the monotonic reading of time.Now.
func TestNoWallClockDecides(t *testing.T) {
	const root = "../.."
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files++
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && isLongAgo(call) {
				return false
			}
			if s, ok := n.(*ast.SelectorExpr); ok && wallClock[s.Sel.Name] && !isTold(name, s.Sel.Name) {
				t.Errorf("%s: %s", set.Position(s.Pos()), s.Sel.Name)
			}
			return true
		})
		return nil
	})
	if err != nil || files < 50 {
		t.Fatalf("%d files: %v", files, err)
	}
}

// isLongAgo reports whether the call is time.Unix(1, 0), which ends a wait at
// once under every clock.
func isLongAgo(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "Unix" || len(call.Args) != 2 {
		return false
	}
	seconds, ok := call.Args[0].(*ast.BasicLit)
	return ok && seconds.Value == "1"
}
