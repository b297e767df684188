package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/artifacts"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/launch"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/privilege"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/runsc"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Exit statuses.
const (
	exitOK = iota
	exitRuntime
	exitUsage
	exitNotRoot
	exitConfig
	exitArtifact
	exitRunning
	exitLimits
)

const usage = `Usage: paseo-sandbox-broker [--prefix DIR] [--listen] [--log-json]
       paseo-sandbox-broker [--prefix DIR] --check-config

Starts agent sessions in sandboxes for the deployments that are registered in
/etc/paseo-sandbox. Its sockets come from systemd, each named after its
deployment (FileDescriptorName=), the operator's "admin". On SIGHUP it reads its
configuration again, as broker-admin reload makes it.

  --prefix DIR    keep everything below DIR, in etc, run and var
  --listen        make the sockets, instead of getting them from systemd
  --check-config  read the configuration, say whether it is valid, and end
  --log-json      write the log, and errors, as JSON
  --version       print the version and end
  --help          print this and end

Exit status: 0 success, 1 failure while running, 2 wrong usage, 3 not root,
4 invalid configuration, 5 runsc, rootfs or bridge missing or not as pinned,
6 another broker runs, 7 the host can't bound what sessions use.
`

type options struct {
	prefix                     string
	listen, checkOnly, logJSON bool
	// reload gets what asks for the configuration to be read again.
	reload <-chan os.Signal
}

func main() {
	// A session's reaper, and what becomes its bridge, are this program under
	// other names.
	runsc.RunIfReaper()
	launch.RunIfStub()
	// Others are told later that root is needed.
	if os.Geteuid() == 0 {
		if err := privilege.Confine(); err != nil {
			report(os.Stderr, err, false)
			os.Exit(status(err))
		}
	}
	if err := process.SealInherited(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitRuntime)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	var o options
	var version bool
	f := flag.NewFlagSet("paseo-sandbox-broker", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.prefix, "prefix", "", "")
	f.BoolVar(&o.listen, "listen", false, "")
	f.BoolVar(&o.checkOnly, "check-config", false, "")
	f.BoolVar(&o.logJSON, "log-json", false, "")
	f.BoolVar(&version, "version", false, "")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return exitOK
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("there is no argument %q", f.Arg(0))
		fallthrough
	case err != nil:
		fmt.Fprintf(stderr, "usage: %v. Run paseo-sandbox-broker --help\n", err)
		return exitUsage
	case version:
		fmt.Fprintln(stdout, "paseo-sandbox-broker", programVersion())
		return exitOK
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	// A pipe that goes away must not end sessions; nor does a terminal, whose
	// end is a reload.
	signal.Ignore(unix.SIGPIPE)
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, unix.SIGHUP)
	defer signal.Stop(reload)
	o.reload = reload
	if err := serve(ctx, o, stdout, stderr); err != nil {
		report(stderr, err, o.logJSON)
		return status(err)
	}
	return exitOK
}

func programVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

// report writes an error as code, sentence and advice.
func report(w io.Writer, err error, asJSON bool) {
	e := &wire.Error{Code: wire.CodeInternal, Message: err.Error(), Advice: "look at the log"}
	errors.As(err, &e)
	message := e.Message
	if e.Err != nil {
		message += ": " + e.Err.Error()
	}
	if asJSON {
		_ = json.NewEncoder(w).Encode(map[string]string{"code": string(e.Code), "message": message, "advice": e.Advice})
		return
	}
	fmt.Fprintf(w, "%s: %s. %s\n", e.Code, message, e.Advice)
}

func status(err error) int {
	var a *artifacts.Error
	switch code := wire.CodeOf(err); {
	case errors.As(err, &a):
		return exitArtifact
	case code == wire.CodeRootRequired:
		return exitNotRoot
	case code == wire.CodeInvalidConfig:
		return exitConfig
	case code == wire.CodeBrokerRunning:
		return exitRunning
	case code == wire.CodeDiskUnavailable || code == wire.CodeLimitsUnavailable:
		return exitLimits
	}
	return exitRuntime
}
