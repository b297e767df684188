package registry

import (
	"fmt"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Admits says whether the deployment may have another session, of the profile,
// beside those whose spools may hold so many bytes each. What is there counts
// by its limit and not by what it holds, so that the disk is bounded whatever
// agents print. Errors: CodeTooManySessions, CodeDeploymentSpoolFull.
func (d *Deployment) Admits(p *Profile, spools []uint64) error {
	if n := len(spools); n >= d.MaxSessions {
		return &wire.Error{
			Code: wire.CodeTooManySessions, Message: fmt.Sprintf("the deployment has %d sessions, the limit is %d", n, d.MaxSessions),
			Advice: "delete sessions that have ended, or have the operator raise max_sessions",
		}
	}
	var sum uint64
	for _, n := range spools {
		sum += n
	}
	if d.SpoolTotal != 0 && sum+uint64(p.Spool) > uint64(d.SpoolTotal) {
		return &wire.Error{
			Code:    wire.CodeDeploymentSpoolFull,
			Message: fmt.Sprintf("the spools of the deployment's %d sessions may hold %d bytes, another one %d more, and all together %d", len(spools), sum, p.Spool, d.SpoolTotal),
			Advice:  "delete sessions that have ended, or have the operator raise spool_total",
		}
	}
	return nil
}
