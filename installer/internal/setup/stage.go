package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
)

// Recipe makes one artifact.
type Recipe struct {
	Name    string // a file name: "runsc", "rootfs"
	Key     string // changes whenever the recipe or one of its pins does; a file name
	Payload string // what the last stage leaves in its folder: the artifact itself
	Space   int64  // free bytes that building needs
	Needs   []Tool
	Stages  []Stage
}

// Stage makes one folder from the folders of the stages before it.
type Stage struct {
	Name string
	// Run fills the empty folder out. It may leave anything there when it fails.
	Run func(ctx context.Context, b *Bench, out string) error
}

// Bench is where the stages of a recipe work.
type Bench struct {
	dir string
	log string
}

// Output returns the folder that a finished stage made.
func (b *Bench) Output(stage string) string { return filepath.Join(b.dir, stage) }

// Exec runs a program with its output in the stage's log.
func (b *Bench) Exec(ctx context.Context, dir string, env []string, args ...string) error {
	c := Command{Args: args, Dir: dir, Env: env, Log: b.log}
	return c.Run(ctx)
}

const half = ".half" // suffix of a folder whose stage has not finished

// build makes the artifact and puts it into place; its digest is the result.
// The cache must be locked.
func (s *Setup) build(ctx context.Context, r *Recipe) (string, error) {
	dir, err := s.runStages(ctx, r)
	if err != nil {
		return "", err
	}
	last := filepath.Join(dir, r.Stages[len(r.Stages)-1].Name)
	digest, err := s.seal(ctx, r, last)
	if err != nil {
		return "", err
	}
	what := r.Name + ": put into place"
	err = s.Progress.During(what, nil, func() error {
		final := s.artifactDir(r)
		if err := replaceDir(last, final, filepath.Join(dir, "replaced")); err != nil {
			return Errorf(CodeCache, err, "Look at the cause.", "the finished artifact can't be moved to %q", final)
		}
		if err := removeTree(filepath.Dir(dir)); err != nil {
			s.Progress.Printf("%s: leftovers stay in %s: %v", what, dir, err)
		}
		return nil
	})
	return digest, err
}

// runStages runs the stages that have not finished in an earlier run and
// returns the folder that holds theirs.
func (s *Setup) runStages(ctx context.Context, r *Recipe) (string, error) {
	work := filepath.Join(s.Cache, "work", r.Name)
	dir := filepath.Join(work, r.Key)
	if err := s.clearWork(work, r); err != nil {
		return "", err
	}
	for i := range r.Stages {
		if err := s.stage(ctx, r, &r.Stages[i], dir); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// clearWork discards what an interrupted run left half-done, and everything
// made for another key.
func (s *Setup) clearWork(work string, r *Recipe) error {
	unusable := func(err error) error {
		return Errorf(CodeCache, err, "Look at the cause.", "the work folder %q can't be prepared", work)
	}
	if s.Force {
		if err := removeTree(work); err != nil {
			return unusable(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(work, r.Key), 0o755); err != nil {
		return unusable(err)
	}
	clear := func(dir string, keep func(name string) bool) error {
		found, err := os.ReadDir(dir)
		if err != nil {
			return unusable(err)
		}
		for _, entry := range found {
			if keep(entry.Name()) {
				continue
			}
			if err := removeTree(filepath.Join(dir, entry.Name())); err != nil {
				return unusable(err)
			}
		}
		return nil
	}
	if err := clear(work, func(name string) bool { return name == r.Key }); err != nil {
		return err
	}
	return clear(filepath.Join(work, r.Key), func(name string) bool { return !strings.HasSuffix(name, half) })
}

// stage runs one stage unless its folder is there.
func (s *Setup) stage(ctx context.Context, r *Recipe, st *Stage, dir string) error {
	what := r.Name + ": " + st.Name
	out := filepath.Join(dir, st.Name)
	if _, err := os.Lstat(out); err == nil {
		s.Progress.Printf("%s: kept from the earlier run", what)
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Errorf(CodeCache, err, "Look at the cause.", "%q can't be examined", out)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	log := filepath.Join(s.Cache, "log", r.Name+"-"+st.Name+".log")
	if err := os.WriteFile(log, nil, 0o644); err != nil {
		return Errorf(CodeCache, err, "Look at the cause.", "the log %q can't be written", log)
	}
	s.Progress.Printf("%s: started", what)
	return s.Progress.During(what, func() string { return tail(log, 1) }, func() error {
		if err := os.Mkdir(out+half, 0o755); err != nil {
			return Errorf(CodeCache, err, "Look at the cause.", "a folder for %s can't be made", what)
		}
		if err := st.Run(ctx, &Bench{dir: dir, log: log}, out+half); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		// A stage that counts as finished must be so after a power cut too.
		if err := syncFilesystem(out + half); err != nil {
			return Errorf(CodeCache, err, "Look at the cause.", "%s can't be brought to disk", what)
		}
		if err := os.Rename(out+half, out); err != nil {
			return Errorf(CodeCache, err, "Look at the cause.", "%s can't be put into place", what)
		}
		return nil
	})
}

// seal writes the manifest beside the payload and returns its digest.
func (s *Setup) seal(ctx context.Context, r *Recipe, dir string) (string, error) {
	var m *artifact.Manifest
	err := s.Progress.During(r.Name+": manifest", nil, func() (err error) {
		if m, err = artifact.Build(ctx, filepath.Join(dir, r.Payload)); err != nil {
			return err
		}
		f, err := os.Create(filepath.Join(dir, manifestName))
		if err != nil {
			return err
		}
		_, err = m.WriteTo(f)
		return errors.Join(err, f.Sync(), f.Close())
	})
	if err != nil {
		return "", err
	}
	return m.Digest(), nil
}

// replaceDir moves a folder to its final name, an older one out of the way.
func replaceDir(from, to, aside string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.Rename(to, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncFilesystem(filepath.Dir(to))
}

func syncFilesystem(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
