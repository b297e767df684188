package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"git.jb.codes/jb/paseo-sandbox/installer/internal/setup"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact/cache"
)

type options struct {
	cache, source, mirror string
	check, verify, force  bool
	json, toml, tests     bool
}

func main() {
	var o options
	flags := flag.NewFlagSet("setup", flag.ContinueOnError)
	flags.StringVar(&o.cache, "cache", cache.Dir(), "the `folder` to build into")
	flags.StringVar(&o.source, "source", "installer", "the installer `folder` of the source tree")
	flags.StringVar(&o.mirror, "mirror", "", "the Debian mirror (`URL`) to use instead of the one apt is configured with")
	flags.BoolVar(&o.check, "check", false, "change nothing; report what is ready and what is missing")
	flags.BoolVar(&o.verify, "verify", false, "read finished artifacts in full")
	flags.BoolVar(&o.force, "force", false, "build again what is finished; nothing may be using it")
	flags.BoolVar(&o.json, "json", false, "print the result as one JSON object")
	flags.BoolVar(&o.toml, "toml", false, "print the result as the broker's configuration names the artifacts")
	flags.BoolVar(&o.tests, "tests", false, "make what the tests need as well: a C compiler for the race detector, a systemd to boot")
	if err := flags.Parse(os.Args[1:]); errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	} else if err != nil || flags.NArg() > 0 || (o.check && o.force) {
		fmt.Fprintln(os.Stderr, "setup: wrong usage; see --help")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends this process at once
	// debootstrap and what apt-get calls live in sbin, which a plain su leaves out.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin"); err != nil {
		fmt.Fprintln(os.Stderr, "setup:", err)
		os.Exit(1)
	}
	unix.Umask(0o022) // modes are part of an artifact's digest
	res, err := run(ctx, &o)
	if err != nil && ctx.Err() != nil {
		err = setup.Errorf(setup.CodeInterrupted, nil, "Run it again: it continues after the last finished stage.", "interrupted")
		res.Error = describe(err)
		res.print(&o)
		os.Exit(130)
	}
	if err != nil {
		res.Error = describe(err)
	}
	res.print(&o)
	if err != nil {
		os.Exit(1)
	}
}
