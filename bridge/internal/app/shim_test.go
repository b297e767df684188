package app_test

import (
	"flag"
	"os"
	"testing"

	"pgregory.net/rapid"
)

// checksVariable sets how many sequences the model-based test tries.
const checksVariable = "PASEO_SANDBOX_MODEL_CHECKS"

// modelChecks are tried otherwise: each is a session with bridges in processes
// of their own.
const (
	modelChecks = "4"
	modelSteps  = "80" // of each, about
)

// propertyTB lets the rig fail and clean up one run of a property, so that
// rapid can shrink it.
type propertyTB struct {
	testing.TB
	rt *rapid.T
}

func (p propertyTB) Helper()                      {}
func (p propertyTB) Cleanup(f func())             { p.rt.Cleanup(f) }
func (p propertyTB) Error(args ...any)            { p.rt.Error(args...) }
func (p propertyTB) Errorf(f string, args ...any) { p.rt.Errorf(f, args...) }
func (p propertyTB) Fatal(args ...any)            { p.rt.Fatal(args...) }
func (p propertyTB) Fatalf(f string, args ...any) { p.rt.Fatalf(f, args...) }
func (p propertyTB) Failed() bool                 { return p.rt.Failed() }
func (p propertyTB) Log(args ...any)              { p.rt.Log(args...) }
func (p propertyTB) Logf(f string, args ...any)   { p.rt.Logf(f, args...) }
func (p propertyTB) TempDir() string {
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		p.rt.Fatal(err)
	}
	p.rt.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// setChecks says how often and how long rapid.Check tries, for this test only.
func setChecks(t *testing.T) {
	t.Helper()
	checks := os.Getenv(checksVariable)
	if checks == "" {
		checks = modelChecks
	}
	for name, value := range map[string]string{"rapid.checks": checks, "rapid.steps": modelSteps} {
		before := flag.Lookup(name).Value.String()
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := flag.Set(name, before); err != nil {
				t.Error(err)
			}
		})
	}
}
