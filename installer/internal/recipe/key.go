package recipe

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"git.jb.codes/jb/paseo-sandbox/installer/internal/setup"
)

// The recipe's own text is part of its key, so that no change of it can be
// forgotten there.
//
//go:embed runsc.go rootfs.go assemble.go copy.go systemd.go
var text embed.FS

const recipeAdvice = "Run it from the top of the source tree, or name the installer folder with --source."

// key digests what decides about an artifact: files of the recipe (embedded),
// files of the source folder, and words such as the architecture.
func key(source string, code, files, words []string) (string, error) {
	h := sha256.New()
	part := func(name string, data []byte) { fmt.Fprintf(h, "%s %d\n%s", name, len(data), data) }
	for _, name := range code {
		data, err := text.ReadFile(name)
		if err != nil {
			return "", err
		}
		part(name, data)
	}
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return "", setup.Errorf(setup.CodeRecipe, err, recipeAdvice, "a file of the recipe can't be read")
		}
		part(name, data)
	}
	slices.Sort(words)
	for _, w := range words {
		part("word", []byte(w))
	}
	return hex.EncodeToString(h.Sum(nil))[:24], nil
}
