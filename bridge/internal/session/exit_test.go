package session

import (
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// R31: what the reaper writes is read as it is; anything else was not observed.
func TestParseStatus(t *testing.T) {
	unknown := wire.Exit{Code: unknownCode, Reason: wire.ReasonUnknown}
	for status, want := range map[string]wire.Exit{
		`{"id":"x","exitStatus":0}` + "\n":   {Code: 0, Reason: wire.ReasonExited},
		`{"id":"x","exitStatus":128}` + "\n": {Code: 128, Reason: wire.ReasonExited},
		`{"id":"x","exitStatus":129}`:        {Code: 129, Signal: "HUP", Reason: wire.ReasonExited},
		`{"id":"x","exitStatus":137}`:        {Code: 137, Signal: "KILL", Reason: wire.ReasonExited},
		`{"id":"x","exitStatus":255}`:        {Code: 255, Reason: wire.ReasonExited},
		"":                                   unknown,
		"\n":                                 unknown,
		`{"id":"x"}`:                         unknown,
		`{"id":"x","exitStatus":256}`:        unknown,
		`{"id":"x","exitStatus":-1}`:         unknown,
		`{"id":"x","exitStatus":"0"}`:        unknown,
		`{"id":"x","exitSta`:                 unknown,
	} {
		if got := parseStatus([]byte(status)); got != want {
			t.Errorf("%q is %+v, want %+v", status, got, want)
		}
		if err := want.Validate(); err != nil {
			t.Errorf("%+v can't be sent: %v", want, err)
		}
	}
}
