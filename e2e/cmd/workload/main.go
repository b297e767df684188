package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/flow"
)

// A stream rests for pause after each burst of bytes: a storm is about
// instants, and leaves the machine to others.
const (
	burst      = 4 << 10
	pause      = 25 * time.Millisecond
	inputLimit = 1 << 20
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 4 {
		return errors.New("usage: workload STDOUT STDERR STDIN")
	}
	var streams [3]flow.Stream
	for i := range streams {
		name, err := strconv.ParseUint(os.Args[i+1], 16, 64)
		if err != nil {
			return err
		}
		streams[i].Name = name
	}
	stdout, stderr, stdin := &streams[0], &streams[1], &streams[2]
	var ended atomic.Bool
	var writers sync.WaitGroup
	writers.Go(func() { write(os.Stdout, stdout, &ended) })
	writers.Go(func() { write(os.Stderr, stderr, &ended) })
	fault := check(stdin)
	ended.Store(true)
	writers.Wait()
	v := flow.Verdict{Stdout: stdout.At, Stderr: stderr.At, Stdin: stdin.At}
	if fault != nil {
		v.Fault = fault.Error()
	}
	line, err := v.Line()
	if err == nil {
		_, err = os.Stdout.Write(line)
	}
	return errors.Join(fault, err)
}

func write(w io.Writer, s *flow.Stream, ended *atomic.Bool) {
	for rested := uint64(0); !ended.Load(); {
		if _, err := w.Write(s.Next()); err != nil {
			return
		}
		if s.At.Bytes-rested > burst {
			rested = s.At.Bytes
			time.Sleep(pause)
		}
	}
}

// check reads standard input to its end.
func check(s *flow.Stream) error {
	in := bufio.NewReaderSize(os.Stdin, inputLimit)
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if wrong := s.Check(line); wrong != nil {
			return fmt.Errorf("%w (%v)", wrong, err)
		}
	}
}
