package main

import (
	"maps"
	"slices"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/activation"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/sdnotify"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/session"
	"github.com/hashicorp/go-hclog"
)

// kept is what systemd keeps for the broker, and how it is reached.
type kept struct {
	systemd *sdnotify.Systemd // nil without systemd
	passed  *activation.Passed
	log     hclog.Logger
}

// openKept takes what systemd passed, and says where its store is too small for
// all sessions that there may be.
func openKept(log hclog.Logger, config *registry.Config) (*kept, error) {
	passed, err := activation.Receive()
	if err != nil {
		return nil, err
	}
	systemd, err := sdnotify.Open(slices.Collect(maps.Keys(passed.Stored)))
	if err != nil {
		return nil, err
	}
	needed := 0
	for _, d := range config.Deployments {
		needed += d.MaxSessions * session.DescriptorsPerSession()
	}
	if systemd != nil && systemd.Size() < needed {
		log.Warn("descriptor_store_small", "size", systemd.Size(), "needed", needed,
			"advice", "a session without a place in it is lost when broker and bridge die at once; set FileDescriptorStoreMax= in the unit, and before systemd 254 Environment=FDSTORE= to the same")
	}
	return &kept{systemd, passed, log}, nil
}

// told logs that systemd could not be told.
func (k *kept) told(err error) {
	if err != nil {
		k.log.Error("systemd_untold", "error", err.Error(), "advice", "if its watchdog is on, systemd restarts the broker; sessions go on")
	}
}
