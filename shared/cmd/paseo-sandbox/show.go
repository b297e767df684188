package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// view returns a message as JSON shows it: under the keys of the protocol, and
// without what only matters on the wire.
func view(v any) any { return viewOf(reflect.ValueOf(v)) }

func viewOf(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return viewOf(v.Elem())
	case reflect.Slice:
		all := make([]any, v.Len())
		for i := range all {
			all[i] = viewOf(v.Index(i))
		}
		return all
	case reflect.Struct:
		keys := make(map[string]any)
		for i := range v.NumField() {
			key, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("cbor"), ",")
			if key == "type" || key == "id" || options == "omitempty" && v.Field(i).IsZero() {
				continue
			}
			keys[key] = viewOf(v.Field(i))
		}
		return keys
	}
	return v.Interface()
}

// printJSON writes one indented value to standard output.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// describeExit is one phrase about how a session ended.
func describeExit(e *wire.Exit) string {
	s := fmt.Sprintf("exit code %d", e.Code)
	if e.Signal != "" {
		s = "signal " + e.Signal
	}
	switch e.Reason {
	case wire.ReasonOutOfMemory:
		s += ", out of memory"
	case wire.ReasonTooManyProcesses:
		s += ", too many processes"
	case wire.ReasonAbandoned:
		s += ", abandoned: it had no writer for longer than its profile allows"
	case wire.ReasonTerminated:
		s += ", terminated"
	case wire.ReasonUnknown:
		s = "unknown: its status was not observed"
	}
	return s
}

func describeState(info wire.SessionInfo) string {
	if info.Exit == nil {
		return string(info.State)
	}
	return fmt.Sprintf("%s (%s)", info.State, describeExit(info.Exit))
}

func created(info wire.SessionInfo) time.Time { return time.UnixMilli(int64(info.CreatedAt)) }
