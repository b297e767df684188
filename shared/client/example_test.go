package client_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/client/clienttest"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// A daemon creates a session, gives its agent one input and reads until the
// end. The agent here is one that repeats its input.
func Example() {
	server, err := clienttest.New(clienttest.Echo)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := useSession(ctx, server.Socket()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// record 1: hello
	// record 2: the agent exited with 0
}

func useSession(ctx context.Context, brokerSocket string) error {
	b, err := client.DialBroker(ctx, brokerSocket)
	if err != nil {
		return err
	}
	defer b.Close()
	info, err := b.Create(ctx, client.CreateOptions{Workspace: "site"})
	if err != nil {
		return err
	}
	s, err := client.DialSession(ctx, b.SessionSocket(info))
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := s.Attach(ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest, Client: "example"}); err != nil {
		return err
	}
	if _, err := s.Input(ctx, "example-1", []byte("hello\n")); err != nil {
		return err
	}
	if err := s.CloseInput(ctx); err != nil {
		return err
	}
	for {
		r, err := s.Next(ctx)
		if err == io.EOF {
			return b.Delete(ctx, info.Session)
		}
		if err != nil {
			return err
		}
		if r.Stream == wire.StreamExit {
			exit, err := wire.DecodeExit(r.Data)
			if err != nil {
				return err
			}
			fmt.Printf("record %d: the agent exited with %d\n", r.Sequence, exit.Code)
		} else {
			fmt.Printf("record %d: %s", r.Sequence, r.Data)
		}
		if err := s.Ack(ctx, r.Sequence); err != nil {
			return err
		}
	}
}
