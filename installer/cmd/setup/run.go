package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"git.jb.codes/jb/paseo-sandbox/installer/internal/recipe"
	"git.jb.codes/jb/paseo-sandbox/installer/internal/setup"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact/cache"
)

// result is what a run reports.
type result struct {
	Cache     string       `json:"cache"`
	Artifacts *cache.Index `json:"artifacts,omitempty"`
	Built     []string     `json:"built"`
	NotReady  []string     `json:"notReady,omitempty"`
	Tools     []toolState  `json:"tools,omitempty"`
	Error     *problem     `json:"error,omitempty"`
}

type toolState struct {
	Name    string `json:"name"`
	Present bool   `json:"present"`
	Package string `json:"package,omitempty"`
}

type problem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Advice  string `json:"advice,omitempty"`
}

func describe(err error) *problem {
	p := &problem{Code: "setup_failed", Message: err.Error()}
	var typed interface {
		error
		ErrorCode() string
		ErrorAdvice() string
	}
	if errors.As(err, &typed) {
		p.Code, p.Advice = typed.ErrorCode(), typed.ErrorAdvice()
	}
	return p
}

func (r *result) print(o *options) {
	if o.json {
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", "  ")
		_ = out.Encode(r) // nothing is left to tell it to
		return
	}
	if o.toml && r.Artifacts != nil && r.Error == nil {
		printTable("runsc", r.Artifacts.Runsc)
		printTable("rootfs", r.Artifacts.Rootfs.Location)
		return
	}
	for _, t := range r.Tools {
		state := "ok"
		if !t.Present {
			state = "missing"
		}
		fmt.Printf("tool    %-8s %s\n", state, t.Name)
	}
	for _, name := range r.NotReady {
		fmt.Printf("%-7s not built\n", name)
	}
	if ix := r.Artifacts; ix != nil && r.Error == nil {
		fmt.Printf("runsc   ready    %s\n                 %s\n", ix.Runsc.Path, ix.Runsc.Digest)
		fmt.Printf("rootfs  ready    %s\n                 %s (Node %s, Pi %s)\n", ix.Rootfs.Path, ix.Rootfs.Digest, ix.Rootfs.NodeVersion, ix.Rootfs.PiVersion)
	}
	if p := r.Error; p != nil {
		fmt.Fprintf(os.Stderr, "setup: %s: %s\n       %s\n", p.Code, p.Message, p.Advice)
	}
}

// printTable prints a table of broker.toml.
func printTable(name string, l artifact.Location) {
	fmt.Printf("[%s]\npath = %q\nmanifest = %q\ndigest = %q\n\n", name, l.Path, l.Manifest, l.Digest)
}

// plan is the recipes and what is known of their artifacts.
type plan struct {
	recipes  []*setup.Recipe
	versions recipe.Versions
	known    *cache.Index
	locs     []artifact.Location
	missing  []*setup.Recipe
}

// testTools are what the race detector needs: it is linked by a C compiler.
var testTools = []setup.Tool{
	{Name: "gcc", Package: "gcc", Advice: "Install a C compiler as gcc."},
	{Name: "/usr/include/stdlib.h", Package: "libc6-dev", Advice: "Install the headers of the C library."},
}

func run(ctx context.Context, o *options) (*result, error) {
	res := &result{Cache: o.cache, Built: []string{}}
	var p plan
	if err := p.read(o); err != nil {
		return res, err
	}
	s := &setup.Setup{Cache: o.cache, Progress: setup.NewProgress(os.Stderr), Verify: o.verify, Force: o.force}
	if o.check {
		return res, p.check(ctx, s, res)
	}
	if err := setup.CheckRoot(o.cache); err != nil {
		return res, err
	}
	unlock, err := s.Open(ctx)
	if err != nil {
		return res, err
	}
	defer unlock()
	res.Cache = s.Cache
	if o.tests {
		if err := s.InstallMissing(ctx, testTools); err != nil {
			return res, err
		}
	}
	if err := p.examine(ctx, s); err != nil {
		return res, err
	}
	if len(p.missing) > 0 {
		if err := p.build(ctx, s); err != nil {
			return res, err
		}
	}
	for _, r := range p.missing {
		res.Built = append(res.Built, r.Name)
	}
	res.Artifacts = p.index()
	if p.known == nil || *p.known != *res.Artifacts {
		if err := cache.Store(s.Cache, res.Artifacts); err != nil {
			return res, setup.Errorf(setup.CodeCache, err, "Look at the cause.", "the index can't be written")
		}
	}
	if o.tests {
		return res, p.forTests(ctx, s, o, res)
	}
	return res, nil
}

// forTests builds what only tests need, over the finished rootfs.
func (p *plan) forTests(ctx context.Context, s *setup.Setup, o *options, res *result) error {
	r, err := recipe.Systemd(o.source, p.locs[1].Path, p.recipes[1].Key)
	if err != nil {
		return err
	}
	var known cache.Tests
	if ix, err := cache.LocateTests(s.Cache); err == nil {
		known = *ix
	}
	loc, ready, err := s.Ready(ctx, r, known.Systemd)
	if err != nil {
		return err
	}
	if !ready || s.Force {
		if err := s.InstallMissing(ctx, r.Needs); err != nil {
			return err
		}
		locs, err := s.Build(ctx, []*setup.Recipe{r})
		if err != nil {
			return err
		}
		loc = locs[0]
		res.Built = append(res.Built, r.Name)
	}
	if known.Systemd == loc {
		return nil
	}
	if err := cache.StoreTests(s.Cache, &cache.Tests{Systemd: loc}); err != nil {
		return setup.Errorf(setup.CodeCache, err, "Look at the cause.", "the index of what tests need can't be written")
	}
	return nil
}

func (p *plan) read(o *options) error {
	var err error
	if o.cache, err = filepath.Abs(o.cache); err != nil {
		return err
	}
	if o.source, err = filepath.Abs(o.source); err != nil {
		return err
	}
	runsc, err := recipe.Runsc(o.source)
	if err != nil {
		return err
	}
	if o.mirror == "" && setup.OnDebian() {
		o.mirror = recipe.Mirror("/etc/apt")
	}
	rootfs, versions, err := recipe.Rootfs(o.source, o.mirror)
	p.recipes, p.versions = []*setup.Recipe{runsc, rootfs}, versions
	return err
}

// examine finds out which artifacts are ready.
func (p *plan) examine(ctx context.Context, s *setup.Setup) error {
	ix, err := cache.Locate(s.Cache)
	var typed *cache.Error
	if err == nil {
		p.known = ix
	} else if !errors.As(err, &typed) || typed.Code != cache.CodeMissing {
		s.Progress.Printf("%v; it will be written anew", err)
	}
	p.locs = make([]artifact.Location, len(p.recipes))
	for i, r := range p.recipes {
		if s.Force {
			p.missing = append(p.missing, r)
			continue
		}
		var known artifact.Location
		if p.known != nil {
			known = [...]artifact.Location{p.known.Runsc, p.known.Rootfs.Location}[i]
		}
		loc, ready, err := s.Ready(ctx, r, known)
		if err != nil {
			return err
		}
		p.locs[i] = loc
		if !ready {
			p.missing = append(p.missing, r)
		}
	}
	return nil
}

func (p *plan) check(ctx context.Context, s *setup.Setup, res *result) error {
	if err := s.Resolve(); err != nil {
		return err
	}
	if err := p.examine(ctx, s); err != nil {
		return err
	}
	for _, t := range setup.Tools(p.missing) {
		res.Tools = append(res.Tools, toolState{t.Name, t.Present(), t.Package})
	}
	for _, r := range p.missing {
		res.NotReady = append(res.NotReady, r.Name)
	}
	if len(p.missing) > 0 {
		return setup.Errorf(setup.CodeNotReady, errors.Join(setup.CheckRoot(s.Cache), s.CheckSpace(p.missing)), "Run set-up without --check.", "not all artifacts are built")
	}
	res.Artifacts = p.index()
	return nil
}

func (p *plan) build(ctx context.Context, s *setup.Setup) error {
	if err := s.InstallMissing(ctx, setup.Tools(p.missing)); err != nil {
		return err
	}
	locs, err := s.Build(ctx, p.missing)
	if err != nil {
		return err
	}
	for i, r := range p.recipes {
		for j, m := range p.missing {
			if r == m {
				p.locs[i] = locs[j]
			}
		}
	}
	return nil
}

func (p *plan) index() *cache.Index {
	return &cache.Index{Arch: runtime.GOARCH, Runsc: p.locs[0],
		Rootfs: cache.Rootfs{Location: p.locs[1], NodeVersion: p.versions.Node, PiVersion: p.versions.Pi}}
}
