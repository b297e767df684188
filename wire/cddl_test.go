package wire

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// grammar is what the test reads of messages.cddl: the right side of each
// rule, without comments, and the members of the rules that are maps.
type grammar struct {
	rules   map[string]string
	members map[string]map[string]member
}

type member struct {
	optional bool
	value    string
}

var (
	ruleHead   = regexp.MustCompile(`^([a-zA-Z][a-zA-Z-]*)\s+=\s*(.*)$`)
	memberForm = regexp.MustCompile(`^(\? )?([a-zA-Z]+): (.+),$`)
	comment    = regexp.MustCompile(`\s*;.*$`)
	literal    = regexp.MustCompile(`"[^"]*"`)
	identifier = regexp.MustCompile(`[.]?[a-zA-Z][a-zA-Z-]*`)
)

// readGrammar reads the subset of CDDL that the file is written in: a rule
// begins at the start of a line, a member of a map ends with a comma at the
// end of one.
func readGrammar(t *testing.T) grammar {
	t.Helper()
	data, err := os.ReadFile("messages.cddl")
	if err != nil {
		t.Fatal(err)
	}
	g := grammar{rules: make(map[string]string), members: make(map[string]map[string]member)}
	rule, pending := "", ""
	for i, line := range strings.Split(string(data), "\n") {
		line = comment.ReplaceAllString(line, "")
		if m := ruleHead.FindStringSubmatch(line); m != nil {
			if rule = m[1]; g.rules[rule] != "" {
				t.Fatalf("line %d: the rule %s comes twice", i+1, rule)
			}
			if g.rules[rule] = m[2]; m[2] == "{" {
				g.members[rule] = make(map[string]member)
			}
			continue
		}
		line = strings.TrimSpace(line)
		if line != "" {
			g.rules[rule] += " " + line
		}
		if g.members[rule] == nil || line == "" || line == "}" {
			continue
		}
		pending = strings.TrimSpace(pending + " " + line)
		if !strings.HasSuffix(line, ",") {
			continue
		}
		m := memberForm.FindStringSubmatch(pending)
		if m == nil {
			t.Fatalf("line %d: can't read the member %q", i+1, pending)
		}
		pending = ""
		if _, ok := g.members[rule][m[2]]; ok {
			t.Fatalf("line %d: the key %s comes twice", i+1, m[2])
		}
		g.members[rule][m[2]] = member{optional: m[1] != "", value: m[3]}
	}
	return g
}

// literals returns the texts of a choice.
func literals(rule string) []string {
	all := literal.FindAllString(rule, -1)
	for i := range all {
		all[i] = strings.Trim(all[i], `"`)
	}
	return all
}

// names returns the rules that a right side refers to.
func names(rule string) []string {
	var all []string
	for _, id := range identifier.FindAllString(literal.ReplaceAllString(rule, ""), -1) {
		if id[0] != '.' {
			all = append(all, id)
		}
	}
	return all
}

// R84: the grammar and the Go types name the same messages in the same
// directions, the same keys, and the same keys as optional.
func TestGrammarMatchesTypes(t *testing.T) {
	g := readGrammar(t)
	covered := make(map[string]bool)
	for name, set := range sets {
		covered[name] = true
		var kinds []string
		for kind, typ := range set {
			kinds = append(kinds, kind)
			if kind != recordsKind {
				g.checkStruct(t, kind, typ, covered)
			}
		}
		got := names(g.rules[name])
		slices.Sort(got)
		slices.Sort(kinds)
		if !slices.Equal(got, kinds) {
			t.Errorf("%s is %v in the grammar, %v in Go", name, got, kinds)
		}
	}
	for rule := range g.members {
		if !covered[rule] {
			t.Errorf("the grammar has %s, Go has not", rule)
		}
	}
}

func (g grammar) checkStruct(t *testing.T, rule string, typ reflect.Type, covered map[string]bool) {
	if covered[rule] {
		return
	}
	covered[rule] = true
	members, ok := g.members[rule]
	if !ok {
		t.Errorf("the grammar has no map %s", rule)
		return
	}
	for i := range typ.NumField() {
		f := typ.Field(i)
		key, optional := fieldKey(f)
		m, ok := members[key]
		if !ok || m.optional != optional {
			t.Errorf("%s.%s: in the grammar %v, optional %v; in Go optional %v", rule, key, ok, m.optional, optional)
			continue
		}
		if key == "type" && i == 0 && m.value != `"`+rule+`"` {
			t.Errorf("%s: its type is %s", rule, m.value)
		}
		if f.Type.Kind() == reflect.Bool && (m.value != "true" || !optional) {
			t.Errorf("%s.%s: a boolean is optional and true", rule, key)
		}
		inner := f.Type
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			if !slices.Contains(names(m.value), ruleOf(inner)) {
				t.Errorf("%s.%s is %s, not %s", rule, key, m.value, ruleOf(inner))
			}
			g.checkStruct(t, ruleOf(inner), inner, covered)
		}
	}
	if len(members) != typ.NumField() {
		t.Errorf("%s has %d keys in the grammar, %d in Go", rule, len(members), typ.NumField())
	}
}

// ruleOf returns the name that the grammar gives to a nested type:
// PendingRequest is pending-request.
func ruleOf(typ reflect.Type) string {
	var b strings.Builder
	for i, r := range typ.Name() {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// Every rule that is referred to exists, and every rule is referred to.
func TestGrammarIsClosed(t *testing.T) {
	g := readGrammar(t)
	used := make(map[string]bool)
	for rule, body := range g.rules {
		if members, ok := g.members[rule]; ok {
			body = ""
			for _, m := range members {
				body += " " + m.value
			}
		}
		for _, name := range names(body) {
			used[name] = true
			if g.rules[name] == "" && name != "tstr" && name != "bstr" && name != "true" {
				t.Errorf("%s refers to %s, which does not exist", rule, name)
			}
		}
	}
	for rule := range g.rules {
		if _, root := sets[rule]; !root && !used[rule] {
			t.Errorf("nothing refers to %s", rule)
		}
	}
}

// The grammar states the choices and the limits that the code enforces.
func TestGrammarStatesTheLimits(t *testing.T) {
	g := readGrammar(t)
	choices := map[string]struct{ grammar, code []string }{
		"signals":     {literals(g.rules["signal-name"]), signals},
		"reasons":     {literals(g.rules["reason"]), texts(reasons)},
		"descriptors": {literals(g.rules["descriptor"]), texts(descriptorNames)},
		"states":      {literals(g.members["session-info"]["state"].value), texts(states)},
		"dues":        {literals(g.members["session-info"]["due"].value), texts(dues)},
	}
	for name, c := range choices {
		if !slices.Equal(c.grammar, c.code) {
			t.Errorf("%s: %v in the grammar, %v in Go", name, c.grammar, c.code)
		}
	}
	limits := []struct{ got, want string }{
		{g.rules["count"], fmt.Sprintf("0..%d", uint64(MaxInteger))},
		{g.rules["offset"], fmt.Sprintf("0..%d", uint64(MaxInteger-MaxFragment))},
		{g.rules["user"], fmt.Sprintf("0..%d", uint64(MaxUID))},
		{g.rules["grace"], fmt.Sprintf("0..%d", MaxGraceMillis)},
		{g.rules["input-id"], fmt.Sprintf("(1..%d)", MaxInputID)},
		{g.rules["lease"], fmt.Sprintf("(0..%d)", MaxLease)},
		{g.rules["name"], fmt.Sprintf("{0,%d}", MaxName-1)},
		{g.rules["deployment-id"], fmt.Sprintf("{0,%d}", MaxDeployment-1)},
		{g.rules["record"], fmt.Sprintf("(1..%d)", MaxFragment)},
		{g.members["hello"]["versions"].value, fmt.Sprintf("1*%d ", MaxVersions)},
		{g.members["hello"]["maxFrame"].value, fmt.Sprintf("%d..", MinPeerFrame)},
		{g.members["error"]["message"].value, fmt.Sprintf("(1..%d)", MaxText)},
		{g.members["create"]["attachments"].value, fmt.Sprintf("1*%d ", MaxAttachments)},
		{g.members["attachment"]["data"].value, fmt.Sprintf("(0..%d)", MaxAttachmentBytes)},
		{g.members["sessionList"]["sessions"].value, fmt.Sprintf("0*%d ", MaxSessionPage)},
		{g.members["collected"]["findings"].value, fmt.Sprintf("0*%d ", MaxFindings)},
		{g.members["finding"]["name"].value, fmt.Sprintf("(1..%d)", MaxFinding)},
		{g.members["session-info"]["socket"].value, fmt.Sprintf("(0..%d)", MaxSocketPath)},
		{g.members["attach"]["client"].value, fmt.Sprintf("(1..%d)", MaxClient)},
		{g.members["attached"]["pending"].value, fmt.Sprintf("1*%d ", MaxPending)},
		{g.members["pending-request"]["requestId"].value, fmt.Sprintf("(1..%d)", MaxRequestID)},
		{g.members["input"]["data"].value, fmt.Sprintf("(1..%d)", MaxFragment)},
		{g.members["configure"]["descriptors"].value, fmt.Sprintf("1*%d ", MaxDescriptors)},
		{g.members["configure"]["peerUids"].value, fmt.Sprintf("0*%d ", MaxPeerUIDs)},
		{g.members["bridgeExit"]["status"].value, fmt.Sprintf("(0..%d)", MaxExitStatus)},
	}
	for _, l := range limits {
		if !strings.Contains(l.got, l.want) {
			t.Errorf("%q does not say %s", l.got, l.want)
		}
	}
}

func texts[T ~string](values []T) []string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = string(v)
	}
	return all
}
