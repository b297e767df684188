package layout

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Trace is something on the host that bears a session's id. The deployment is
// known from a socket only.
type Trace struct {
	Session    wire.SessionID
	Kind       wire.FindingKind
	Path       string
	Deployment string
	Container  bool
}

// Traces finds what sessions have, or have left, in the folders, except for
// their records and what is runsc's, in the order of their ids.
func (l Layout) Traces() ([]Trace, error) {
	var found []Trace
	for pattern, kind := range map[string]wire.FindingKind{
		l.Mounts() + "/*": wire.FoundMount, l.Custody() + "/*": wire.FoundCustody, l.Bundles() + "/*": wire.FoundBundle,
		l.Spools() + "/*": wire.FoundSpool, l.States() + "/*": wire.FoundHome,
		l.Run + "/d/*/s/*.sock": wire.FoundSocket, l.Run + "/c/*/s/*.sock": wire.FoundSocket,
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return nil, refuse("%s can't be searched: %v", l.Run, err)
		}
		for _, path := range paths {
			t := Trace{Kind: kind, Path: path}
			name := filepath.Base(path)
			if kind == wire.FoundSocket {
				name = strings.TrimSuffix(name, ".sock")
				dir := filepath.Dir(filepath.Dir(path))
				t.Deployment, t.Container = filepath.Base(dir), filepath.Dir(dir) == l.Run+"/c"
			}
			if t.Session = wire.SessionID(strings.TrimSuffix(name, homeSuffix)); t.Session.Valid() {
				found = append(found, t)
			}
		}
	}
	SortTraces(found)
	return found, nil
}

// SortTraces puts those of one session beside each other.
func SortTraces(all []Trace) {
	slices.SortFunc(all, func(a, b Trace) int { return cmp.Or(cmp.Compare(a.Session, b.Session), cmp.Compare(a.Path, b.Path)) })
}
