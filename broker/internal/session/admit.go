package session

import (
	"crypto/rand"
	"encoding/hex"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/google/uuid"
)

// admit reserves an id, a uid and a place among the deployment's sessions. The
// session's turn is the caller's.
func (m *Manager) admit(d *registry.Deployment, r wire.Create, p *registry.Profile) (*session, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	var epoch [8]byte
	if _, err := rand.Read(epoch[:]); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() != nil {
		return nil, stopping()
	}
	current := m.registry.Load().Deployments[d.ID]
	if current == nil || current.Container != d.Container {
		return nil, &wire.Error{Code: wire.CodePermissionDenied, Message: "the deployment is not registered any more as it was", Advice: "connect to its socket again, or have the operator register it"}
	}
	if err := d.Admits(p, m.spools(d.ID)); err != nil {
		return nil, err
	}
	bridgeUID, reaperUID, err := m.freeUIDs()
	if err != nil {
		return nil, err
	}
	s := m.newSession(record.Record{
		Session: wire.SessionID(hex.EncodeToString(id[:])), Deployment: d.ID, Container: d.Container,
		Workspace: r.Workspace, Folder: r.Folder, Profile: r.Profile, State: wire.StateCreating, Epoch: wire.Epoch(hex.EncodeToString(epoch[:])),
		CreatedAt: uint64(time.Now().UnixMilli()), Boot: m.Boot, BridgeUID: bridgeUID, ReaperUID: reaperUID,
		Custody: record.Custody{
			Framing: p.Framing, MaxRecord: uint64(p.MaxRecord), MaxInput: uint64(p.MaxInput),
			SpoolLimit: uint64(p.Spool), Overflow: p.Overflow, Terminate: p.Unattached == registry.UnattachedTerminate,
		},
		Policy: record.Policy{EndAbandoned: p.EndAbandoned.Millis(), DeleteEnded: p.DeleteEnded.Millis()}, VacantSince: m.Clock.Now(),
	})
	s.peers = current.PeerUIDs
	s.rec.Cgroup = m.Groups.Path(s.rec.Session)
	s.turn <- struct{}{}
	m.sessions[s.rec.Session] = s
	m.work.Add(1)
	return s, nil
}

// spools returns what the spool of each session of a deployment may hold, in
// bytes. The caller holds the lock.
func (m *Manager) spools(deployment string) []uint64 {
	var all []uint64
	for _, s := range m.sorted(Of(deployment)) {
		all = append(all, s.rec.Custody.SpoolLimit)
	}
	return all
}

func (m *Manager) freeUIDs() (bridge, reaper uint32, err error) {
	used := make(map[uint32]bool, len(m.sessions))
	for _, s := range m.sessions {
		used[s.rec.BridgeUID] = true
		used[s.rec.ReaperUID] = true
	}
	b := m.registry.Load().Bridge
	for i := range b.Pairs() {
		if bridge, reaper = b.Pair(i); !used[bridge] && !used[reaper] {
			return bridge, reaper, nil
		}
	}
	return 0, 0, &wire.Error{Code: wire.CodeTooManySessions, Message: "all users of the bridges are in use", Advice: "delete sessions that have ended, or have the operator raise bridge.uid_count"}
}
