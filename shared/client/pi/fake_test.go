package pi_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"git.jb.codes/jb/paseo-sandbox/shared/client/clienttest"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// fakePi does with turns, queues and dialogs what Pi does, as far as the tests
// of real Pi in e2e have shown it.
type fakePi struct {
	// clearsQueue: it knows the command clear_queue, as newer ones do.
	clearsQueue bool
	// chain is how many dialogs are opened one after the other, each by the
	// answer to the last.
	chain int
	// late makes it answer a prompt, and begin its turn, only after this many
	// answers to get_state.
	late int
	// deaf makes it answer no abort; dies makes it end at one.
	deaf, dies bool

	mu       sync.Mutex
	received []string // ids of commands, and of answers to dialogs
	process  *clienttest.Process
	running  bool
	aborted  bool
	aborts   []string
	queue    int
	dialogs  []string
	opened   int
	bash     []string
	prompts  []string
	states   int
}

type command struct {
	Type, ID  string
	Cancelled bool
}

func (f *fakePi) run(p *clienttest.Process) wire.Exit {
	f.process = p
	in := bufio.NewScanner(p.Stdin)
	for in.Scan() {
		var c command
		if json.Unmarshal(in.Bytes(), &c) != nil {
			return clienttest.Exited(1)
		}
		f.mu.Lock()
		f.received = append(f.received, c.Type+" "+c.ID)
		end := f.take(c)
		f.mu.Unlock()
		if end {
			return clienttest.Exited(1)
		}
	}
	return clienttest.Exited(0)
}

func (f *fakePi) take(c command) (end bool) {
	switch c.Type {
	case "prompt":
		f.prompts = append(f.prompts, c.ID)
		if f.late == 0 {
			f.begin()
		}
	case "steer":
		f.queue++
		f.answer(c, true, nil)
	case "bash":
		f.bash = append(f.bash, c.ID)
	case "ask":
		f.open()
	case "clear_queue":
		if f.clearsQueue {
			f.queue = 0
		}
		f.answer(c, f.clearsQueue, nil)
	case "abort_bash":
		for _, id := range f.bash {
			f.answer(command{Type: "bash", ID: id}, true, map[string]any{"cancelled": true})
		}
		f.bash = nil
		f.answer(c, true, nil)
	case "abort":
		f.aborts = append(f.aborts, c.ID)
		f.aborted = f.running
		f.settle()
		return f.dies
	case "extension_ui_response":
		f.close(c)
	case "get_state":
		f.answer(c, true, map[string]any{"isStreaming": f.running, "pendingMessageCount": f.queue})
		if f.states++; f.late == f.states {
			f.begin()
		}
	}
	return false
}

// say prints an object.
func (f *fakePi) say(o map[string]any) {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	f.process.Stdout.Write(append(b, '\n'))
}

func (f *fakePi) answer(c command, success bool, data any) {
	f.say(map[string]any{"type": "response", "command": c.Type, "id": c.ID, "success": success, "data": data})
}

func (f *fakePi) begin() {
	for _, id := range f.prompts {
		f.answer(command{Type: "prompt", ID: id}, true, nil)
	}
	f.prompts, f.running = nil, true
	f.say(map[string]any{"type": "agent_start"})
}

func (f *fakePi) open() {
	f.opened++
	id := fmt.Sprintf("dialog-%d", f.opened)
	f.dialogs = append(f.dialogs, id)
	f.say(map[string]any{"type": "extension_ui_request", "id": id, "method": "confirm"})
}

func (f *fakePi) close(c command) {
	at := slices.Index(f.dialogs, c.ID)
	if at < 0 || !c.Cancelled {
		return
	}
	f.dialogs = slices.Delete(f.dialogs, at, at+1)
	if f.opened < f.chain {
		f.open()
	}
	f.settle()
}

// settle ends an aborted turn, and begins the next one of the queue.
func (f *fakePi) settle() {
	if f.aborted && len(f.dialogs) == 0 {
		f.running, f.aborted = false, false
		f.say(map[string]any{"type": "agent_end"})
		if f.queue > 0 {
			f.queue--
			f.begin()
			return
		}
		f.say(map[string]any{"type": "agent_settled"})
	}
	if f.running || f.deaf {
		return
	}
	for _, id := range f.aborts {
		f.answer(command{Type: "abort", ID: id}, true, nil)
	}
	f.aborts = nil
}

// state tells what it does.
func (f *fakePi) state() (running bool, dialogs, bash int, received []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running, len(f.dialogs), len(f.bash), slices.Clone(f.received)
}
