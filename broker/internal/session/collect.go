package session

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/disk"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Collect finds the sessions that are past their policies or half made or
// deleted, and whatever bears the id of a session that has no record, and
// removes it, unless dry says that nothing may change (R32). A page has the
// findings of the sessions after the given one, and more says that others
// follow. What can't be removed says so and is found again. Error: CodeTimeout,
// CodeInternal when the host can't be searched.
func (m *Manager) Collect(ctx context.Context, dry bool, after wire.SessionID) (page []wire.Finding, more bool, err error) {
	if err := m.reaping.take(ctx, "what is left of sessions is being removed already"); err != nil {
		return nil, false, err
	}
	defer m.reaping.release()
	found, orphans, err := m.findings(ctx)
	if err != nil {
		return nil, false, err
	}
	page = []wire.Finding{}
	var ids []wire.SessionID
	for len(found) > 0 {
		id, n := found[0].Session, 1
		for n < len(found) && found[n].Session == id {
			n++
		}
		if more = id > after && len(ids) > 0 && len(page)+n > wire.MaxFindings; more {
			break
		}
		if id > after {
			ids, page = append(ids, id), append(page, found[:min(n, wire.MaxFindings)]...)
		}
		found = found[n:]
	}
	if !dry {
		m.clean(ctx, ids, orphans, page)
	}
	return page, more, nil
}

// clean removes what was found of sessions, and notes in the findings what
// could not be.
func (m *Manager) clean(ctx context.Context, ids []wire.SessionID, orphans map[wire.SessionID]*session, page []wire.Finding) {
	var all []*session
	m.mu.Lock()
	for _, id := range ids {
		s := m.sessions[id]
		if s == nil {
			s = orphans[id]
			m.sessions[id] = s
		}
		all = append(all, s)
	}
	m.mu.Unlock()
	failed := make(map[wire.SessionID]wire.Code)
	each(all, func(s *session) error {
		err := s.collect(ctx, orphans[s.rec.Session] == s)
		if err != nil {
			m.mu.Lock()
			failed[s.rec.Session] = AsError(err).Code
			m.mu.Unlock()
			s.log.Error("not_collected", "error", err.Error())
		}
		return nil
	})
	for i := range page {
		page[i].Failed = failed[page[i].Session]
	}
}

// collect removes what is left of the session, or does what is due to it.
func (s *session) collect(ctx context.Context, orphan bool) error {
	if what, _ := s.overdue(); what != "" {
		return s.enforce(ctx)
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.release()
	state := s.state()
	if isClosed(s.gone) || state != wire.StateCreating && state != wire.StateDeleting {
		return nil
	}
	if err := s.erase(ctx); err != nil {
		return err
	}
	s.removed(orphan, state)
	return nil
}

// removed writes into the audit what became of something left behind.
func (s *session) removed(orphan bool, was wire.State) {
	if orphan {
		s.happened("orphanRemoved", "")
		return
	}
	s.happened("undone", string(was))
}

// findings looks for everything and changes nothing. The findings are in the
// order of their sessions. Orphans stand for what has no record.
func (m *Manager) findings(ctx context.Context) ([]wire.Finding, map[wire.SessionID]*session, error) {
	var found []wire.Finding
	m.mu.Lock()
	all := m.sorted(Operator())
	m.mu.Unlock()
	for _, s := range all {
		if f := s.finding(); f.Reason != "" {
			found = append(found, f)
		}
	}
	strays, err := m.strays(ctx)
	if err == nil && len(strays) > 0 {
		// What a deletion was about to remove is not there any more.
		before := strays
		strays, err = m.strays(ctx)
		strays = slices.DeleteFunc(strays, func(t layout.Trace) bool { return !slices.Contains(before, t) })
	}
	if err != nil {
		return nil, nil, err
	}
	for _, t := range strays {
		name := strings.ToValidUTF8(t.Path[max(0, len(t.Path)-wire.MaxFinding):], "?")
		found = append(found, wire.Finding{Session: t.Session, Kind: t.Kind, Name: name, Reason: wire.WhyNoRecord, AgeMillis: age(t.Path)})
	}
	slices.SortStableFunc(found, func(a, b wire.Finding) int { return cmp.Compare(a.Session, b.Session) })
	return found, m.orphans(strays), nil
}

// finding says what a session that is known is to be collected for; its reason
// is empty if it is not.
func (s *session) finding() wire.Finding {
	f := wire.Finding{Session: s.rec.Session, Kind: wire.FoundSession, Name: string(s.rec.Session)}
	_, f.Reason = s.overdue()
	i := s.info()
	f.AgeMillis = i.VacantMillis
	if len(s.turn) > 0 {
		return f // somebody works on it
	}
	switch i.State {
	case wire.StateCreating:
		f.Reason = wire.WhyHalfCreated
	case wire.StateDeleting:
		f.Reason = wire.WhyHalfDeleted
	}
	return f
}

// age is how long ago a file was last changed, in milliseconds, by the wall
// clock. The kernel's own files do not tell.
func age(path string) uint64 {
	info, err := os.Lstat(path)
	if err != nil || strings.HasPrefix(path, "/proc/") || strings.HasPrefix(path, "/dev/") {
		return 0
	}
	return uint64(max(0, time.Since(info.ModTime()).Milliseconds()))
}

// strays finds what bears the id of a session that is not known.
func (m *Manager) strays(ctx context.Context) ([]layout.Trace, error) {
	all, err := m.traces(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(all, func(t layout.Trace) bool { return m.sessions[t.Session] != nil }), nil
}

// traces finds everything on the host that bears a session's id and is ours.
func (m *Manager) traces(ctx context.Context) ([]layout.Trace, error) {
	all, err := m.Layout.Traces()
	if err != nil {
		return nil, err
	}
	containers, err := m.Runtime.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for path, id := range containers {
		kind := wire.FoundContainer
		if strings.HasPrefix(path, "/proc/") {
			kind = wire.FoundProcess
		}
		all = append(all, layout.Trace{Session: id, Kind: kind, Path: path})
	}
	groups, err := m.Groups.List()
	if err != nil {
		return nil, err
	}
	for id, path := range groups {
		all = append(all, layout.Trace{Session: id, Kind: wire.FoundCgroup, Path: path})
	}
	devices, err := disk.Attached(m.Layout.States())
	if err != nil {
		return nil, err
	}
	for name, file := range devices {
		if id := wire.SessionID(filepath.Base(file)); id.Valid() {
			all = append(all, layout.Trace{Session: id, Kind: wire.FoundLoop, Path: "/dev/" + name})
		}
	}
	bridges, err := m.bridges("")
	for _, p := range bridges {
		pid := p.ID().PID
		if words := process.Words(pid); len(words) > 2 {
			all = append(all, layout.Trace{Session: wire.SessionID(words[2]), Kind: wire.FoundProcess, Path: fmt.Sprintf("/proc/%d", pid)})
		}
		p.Close()
	}
	layout.SortTraces(all)
	return all, err
}

// bridgeArgs are the words by which a bridge without a record is known to be
// ours, and whose it is. It does not read them.
func (m *Manager) bridgeArgs(id wire.SessionID) []string {
	return []string{"paseo-sandbox-bridge", "--run=" + m.Layout.Run, string(id)}
}

// bridges holds the bridges of a session, or of all when the id is empty. Only
// the users of bridges are believed: anyone can start a program with the same
// words.
func (m *Manager) bridges(id wire.SessionID) ([]*process.Process, error) {
	users := m.registry.Load().Bridge
	want := m.bridgeArgs(id)
	return process.Search(func(uid uint32, words []string) bool {
		return users.Holds(uid) && len(words) > 2 && slices.Equal(words[:2], want[:2]) &&
			wire.SessionID(words[2]).Valid() && (id == "" || words[2] == string(id))
	})
}

// killStrays ends bridges of the session that no record names.
func (s *session) killStrays(ctx context.Context) error {
	all, err := s.m.bridges(s.rec.Session)
	for _, p := range all {
		if err == nil {
			err = p.Kill(ctx)
		}
		p.Close()
	}
	return err
}

// orphans makes sessions of strays, which are sorted.
func (m *Manager) orphans(strays []layout.Trace) map[wire.SessionID]*session {
	found := make(map[wire.SessionID]*session)
	for _, t := range strays {
		if s := found[t.Session]; s != nil && t.Deployment == "" {
			continue
		}
		found[t.Session] = m.newSession(record.Record{
			Session: t.Session, Deployment: cmp.Or(t.Deployment, "unknown"), Container: t.Container,
			Workspace: "unknown", Profile: "unknown", State: wire.StateDeleting,
		})
	}
	return found
}
