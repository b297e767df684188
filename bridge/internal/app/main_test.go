package app_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/app"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
)

// childVariable makes the test binary be a bridge, with the socketpair as
// descriptor 3, so that a test can kill one.
const childVariable = "PASEO_SANDBOX_TEST_BRIDGE"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(child())
	}
	if socket := os.Getenv(writerVariable); socket != "" {
		if err := writerMain(socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func child() int {
	conn, err := fdpass.Adopt(3)
	if err == nil {
		log := hclog.New(&hclog.LoggerOptions{Output: os.Stderr, JSONFormat: true, Level: hclog.Warn})
		err = app.Run(context.Background(), conn, log)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}
