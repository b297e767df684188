package flow

import (
	"encoding/json"
	"fmt"
	"strings"
)

// verdictPrefix begins the agent's last line. No line of a stream begins so.
const verdictPrefix = "verdict "

// Verdict is what an agent knows at its end: how far its streams are, and what
// was wrong with its input.
type Verdict struct {
	Stdout Position `json:"stdout"`
	Stderr Position `json:"stderr"`
	Stdin  Position `json:"stdin"`
	Fault  string   `json:"fault,omitempty"`
}

// Line is the verdict as a line.
func (v Verdict) Line() ([]byte, error) {
	b, err := json.Marshal(v)
	return fmt.Appendf(nil, "%s%s\n", verdictPrefix, b), err
}

// ParseVerdict reads a verdict; ok is false for any other line.
func ParseVerdict(line []byte) (v Verdict, ok bool) {
	text, ok := strings.CutPrefix(string(line), verdictPrefix)
	return v, ok && json.Unmarshal([]byte(text), &v) == nil
}
