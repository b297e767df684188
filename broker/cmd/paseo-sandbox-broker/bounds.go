package main

import (
	"context"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/cgroup"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/disk"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"github.com/hashicorp/go-hclog"
)

// bounds are what holds sessions to their limits (R34).
type bounds struct {
	groups *cgroup.Groups
	images *disk.Images
}

// openBounds makes sure that every profile's limits can be in force. Errors:
// CodeLimitsUnavailable, CodeDiskUnavailable.
func openBounds(ctx context.Context, l layout.Layout, config *registry.Config) (*bounds, error) {
	images := &disk.Images{}
	for _, size := range config.Homes() {
		if err := images.Prepare(ctx, size); err != nil {
			return nil, err
		}
	}
	groups, err := cgroup.Open(l.CgroupParent())
	return &bounds{groups, images}, err
}

func (b *bounds) report(log hclog.Logger) {
	log.Info("limits", "cgroups", b.groups.Version(), "parent", b.groups.Parent())
	if !b.groups.CountsSwap() {
		log.Warn("swap_unlimited", "advice", "the kernel counts no swap: sessions may use it beside their memory; turn swap off, or boot with swapaccount=1")
	}
}
