package recipe

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// source is one repository of apt's configuration.
type aptSource struct {
	uris, suites, components []string
}

// Mirror returns the Debian mirror that apt on a Debian host is configured with
// below dir, usually /etc/apt, or an empty string. It must carry the component
// main of a plain suite: those of security updates lie elsewhere.
func Mirror(dir string) string {
	names, _ := filepath.Glob(filepath.Join(dir, "sources.list.d", "*"))
	for _, name := range append([]string{filepath.Join(dir, "sources.list")}, names...) {
		data, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		var found []aptSource
		switch filepath.Ext(name) {
		case ".list":
			found = parseList(string(data))
		case ".sources":
			found = parseDeb822(string(data))
		}
		for _, s := range found {
			if uri := s.mirror(); uri != "" {
				return uri
			}
		}
	}
	return ""
}

func (s *aptSource) mirror() string {
	plain := func(suite string) bool { return !strings.ContainsAny(suite, "-/") }
	if !slices.Contains(s.components, "main") || !slices.ContainsFunc(s.suites, plain) {
		return ""
	}
	for _, uri := range s.uris {
		// A list of mirrors in a file, as Debian's cloud images have it.
		if name, ok := strings.CutPrefix(uri, "mirror+file:"); ok {
			data, err := os.ReadFile("/" + strings.TrimLeft(name, "/"))
			if err != nil {
				continue
			}
			uri, _, _ = strings.Cut(strings.TrimSpace(string(data)), "\n")
			uri = strings.Fields(uri + " ")[0]
		}
		// Third parties use other folders; every Debian mirror uses this one.
		trimmed := strings.TrimRight(uri, "/")
		if (strings.HasPrefix(uri, "http://") || strings.HasPrefix(uri, "https://")) && strings.HasSuffix(trimmed, "/debian") {
			return trimmed
		}
	}
	return ""
}

// parseList reads the one-line format of sources.list(5).
func parseList(text string) []aptSource {
	var all []aptSource
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if before, rest, ok := strings.Cut(line, "["); ok {
			_, after, _ := strings.Cut(rest, "]")
			line = before + " " + after
		}
		if f := strings.Fields(line); len(f) >= 4 && f[0] == "deb" {
			all = append(all, aptSource{uris: f[1:2], suites: f[2:3], components: f[3:]})
		}
	}
	return all
}

// parseDeb822 reads the stanza format of sources.list(5).
func parseDeb822(text string) []aptSource {
	var all []aptSource
	fields := map[string]string{}
	last := ""
	flush := func() {
		words := func(name string) []string { return strings.Fields(fields[name]) }
		if slices.Contains(words("types"), "deb") && !strings.EqualFold(strings.TrimSpace(fields["enabled"]), "no") {
			all = append(all, aptSource{uris: words("uris"), suites: words("suites"), components: words("components")})
		}
		fields, last = map[string]string{}, ""
	}
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			flush()
		case line[0] == ' ' || line[0] == '\t':
			fields[last] += " " + line
		default:
			name, value, _ := strings.Cut(line, ":")
			last = strings.ToLower(name)
			fields[last] = value
		}
	}
	flush()
	return all
}
