package story

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// process is a daemon of the story.
type process struct {
	cmd    *exec.Cmd
	events chan event
	done   chan struct{}
}

// start runs our own executable again as a daemon, as the user of daemons.
func (t *teller) start(ctx context.Context, role string) (*process, error) {
	if err := t.intercept(); err != nil {
		return nil, err
	}
	config, err := json.Marshal(daemonConfig{Role: role, BrokerSocket: t.system.BrokerSocket(), SessionSocket: t.socket, StateDir: t.stateDir, KeepSession: t.options.KeepSession})
	if err != nil {
		return nil, err
	}
	// The link works for a user who could not walk to the file itself.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{roleVariable + "=" + string(config)}
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	uid := t.system.PeerUID()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start daemon %s: %w", role, err)
	}
	p := &process{cmd: cmd, events: make(chan event, 64), done: make(chan struct{})}
	go func() {
		readEvents(bufio.NewReader(out), p.events)
		cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// intercept puts the test's socket in place of the session's, once it exists.
func (t *teller) intercept() error {
	if t.options.Intercept == nil || t.info.Session == "" || t.socket != "" {
		return nil
	}
	var err error
	t.socket, err = t.options.Intercept(filepath.Join(filepath.Dir(t.system.BrokerSocket()), t.info.Socket))
	return err
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// await returns the next event of this name; events before it are dropped.
func (p *process) await(ctx context.Context, name string) (event, error) {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	for {
		select {
		case e, ok := <-p.events:
			switch {
			case !ok:
				return event{}, fmt.Errorf("the daemon ended before it told %q", name)
			case e.Name == "failed":
				return event{}, fmt.Errorf("the daemon failed before it told %q: %s", name, e.Text)
			case e.Name == name:
				return e, nil
			}
		case <-ctx.Done():
			return event{}, fmt.Errorf("the daemon did not tell %q: %w", name, ctx.Err())
		}
	}
}

func (p *process) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	select {
	case <-p.done:
		if !p.cmd.ProcessState.Success() {
			return errors.New("the daemon failed: " + p.cmd.ProcessState.String())
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// kill ends the process with SIGKILL and waits until it is gone. It is
// idempotent.
func (p *process) kill() {
	p.cmd.Process.Kill()
	for range p.events {
	}
	<-p.done
}
