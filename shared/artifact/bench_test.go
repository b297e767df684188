package artifact

import (
	"bytes"
	"fmt"
	"testing"
)

// BenchmarkParseManifest parses a manifest as large as that of the Pi rootfs.
func BenchmarkParseManifest(b *testing.B) {
	entries := []Entry{{Path: ".", Type: TypeDir, Mode: 0o755}, {Path: "usr", Type: TypeDir, Mode: 0o755}}
	for i := range 22_000 {
		entries = append(entries, Entry{Path: fmt.Sprintf("usr/a-name-of-some-length-%06d", i), Type: TypeFile, Mode: 0o644, Size: int64(i)})
	}
	m, err := newManifest(KindTree, entries, rootOwner)
	if err != nil {
		b.Fatal(err)
	}
	var text bytes.Buffer
	if _, err := m.WriteTo(&text); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := ParseManifest(text.Bytes()); err != nil {
			b.Fatal(err)
		}
	}
}
