package setup

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Tool is something on the host that a recipe needs.
type Tool struct {
	Name    string // a program on PATH, or an absolute path of a file
	Package string // the Debian package that brings it; empty if none does
	Advice  string // what to do where there is none
}

// Present says whether the tool is there.
func (t *Tool) Present() bool {
	if filepath.IsAbs(t.Name) {
		_, err := os.Stat(t.Name)
		return err == nil
	}
	_, err := exec.LookPath(t.Name)
	return err == nil
}

// Tools returns what the recipes need, each once, sorted by name.
func Tools(recipes []*Recipe) []Tool {
	var all []Tool
	for _, r := range recipes {
		all = append(all, r.Needs...)
	}
	slices.SortFunc(all, func(a, b Tool) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(all, func(a, b Tool) bool { return a.Name == b.Name })
}

// InstallMissing installs, on Debian, the packages of the tools that are not
// there. Elsewhere, or where no package brings one, it says what is missing.
func (s *Setup) InstallMissing(ctx context.Context, tools []Tool) error {
	var packages, missing []string
	advice := ""
	for _, t := range tools {
		if t.Present() {
			continue
		}
		missing = append(missing, t.Name)
		advice = strings.TrimSpace(advice + " " + t.Advice)
		if t.Package != "" {
			packages = append(packages, t.Package)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if len(packages) < len(missing) || !OnDebian() {
		return Errorf(CodeMissing, nil, advice, "set-up needs what is not installed: %s", strings.Join(missing, ", "))
	}
	return s.aptInstall(ctx, packages)
}

// aptInstall tries the package lists as they are before it fetches new ones.
func (s *Setup) aptInstall(ctx context.Context, packages []string) error {
	what := "install " + strings.Join(packages, ", ")
	log := filepath.Join(s.Cache, "log", "apt.log")
	apt := func(args ...string) error {
		c := Command{Args: append([]string{"apt-get", "-o", "DPkg::Lock::Timeout=120"}, args...), Dir: "/",
			Env: []string{"DEBIAN_FRONTEND=noninteractive"}, Log: log, Gentle: true}
		return c.Run(ctx)
	}
	install := append([]string{"install", "-y", "--no-install-recommends"}, packages...)
	s.Progress.Printf("%s: with apt-get", what)
	err := s.Progress.During(what, func() string { return tail(log, 1) }, func() error {
		if apt(install...) == nil {
			return nil
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		s.Progress.Printf("%s: with new package lists (apt-get update)", what)
		if err := apt("update"); err != nil {
			return err
		}
		return apt(install...)
	})
	if err != nil && ctx.Err() == nil {
		return Errorf(CodeInstallFailed, err, "Install them by hand: apt-get install "+strings.Join(packages, " "), "apt-get can't install %s", strings.Join(packages, ", "))
	}
	return err
}
