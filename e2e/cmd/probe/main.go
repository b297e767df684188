package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// request is one line of standard input.
type request struct {
	// Do is the name of an action.
	Do string `json:"do"`
	// Args are the action's own: paths, addresses, or words to look for.
	Args []string `json:"args"`
}

// answers tell for each thing that was tried "ok", the name of an errno, or
// what was found.
type answers map[string]string

var held = map[string]int{} // folders that stay open, by the path they had

var actions = map[string]func([]string) answers{
	"facts":   facts,
	"calls":   calls,
	"dial":    dial,
	"read":    read,
	"open":    open,
	"connect": connect,
	"write":   write,
	"make":    makeFiles,
	"search":  search,
	"walk":    walk,
	"list":    list,
	"hold":    hold,
	"below":   below,
}

func main() {
	// First of all: the runtime opens descriptors of its own later.
	started = descriptors()
	in := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var r request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil || actions[r.Do] == nil {
			fmt.Fprintf(os.Stderr, "not a request: %q, %v\n", in.Bytes(), err)
			os.Exit(2)
		}
		if err := out.Encode(actions[r.Do](r.Args)); err != nil {
			os.Exit(1)
		}
	}
}

// outcome names an error by its errno, so that a table can hold it.
func outcome(err error) string {
	var errno unix.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// each does the same with all arguments.
func each(args []string, do func(string) error) answers {
	a := answers{}
	for _, arg := range args {
		a[arg] = outcome(do(arg))
	}
	return a
}

// read reads files whole: what is found stands behind "ok: ".
func read(paths []string) answers {
	a := answers{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if a[path] = outcome(err); err == nil {
			a[path] = "ok: " + string(b)
		}
	}
	return a
}

// open opens without waiting for another end.
func open(paths []string) answers {
	return each(paths, func(path string) error {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	})
}

// connect connects to Unix sockets; a path that begins with @ is abstract.
func connect(paths []string) answers {
	return each(paths, func(path string) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	})
}

// write makes a file in each folder.
func write(folders []string) answers {
	return each(folders, func(folder string) error {
		return os.WriteFile(folder+"/written-by-the-probe", []byte("x"), 0o644)
	})
}

// list lists folders.
func list(folders []string) answers {
	a := answers{}
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		if a[folder] = outcome(err); err == nil {
			a[folder] = names(entries)
		}
	}
	return a
}

func names(entries []fs.DirEntry) string {
	s := ""
	for _, e := range entries {
		s += e.Name() + " "
	}
	return s
}

// hold opens folders and keeps them open.
func hold(folders []string) answers {
	return each(folders, func(folder string) (err error) {
		held[folder], err = unix.Open(folder, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
}

// below reads paths, args[1:], relative to a held folder, args[0].
func below(args []string) answers {
	return each(args[1:], func(path string) error {
		fd, err := unix.Openat(held[args[0]], path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	})
}
