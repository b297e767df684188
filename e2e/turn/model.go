package turn

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

//go:embed model.ts
var model []byte

// Create asks for a Pi with the scripted model.
func Create() client.CreateOptions {
	return client.CreateOptions{
		Workspace: "project", Model: "scripted/m",
		Attachments: []wire.Attachment{{Kind: wire.AttachmentExtension, Name: "model.ts", Data: model}},
	}
}

// Credentials writes what Pi needs to find and to use the model into dir, and
// returns the tables of a deployment that name it. The folder has to be one
// that only root can change.
func Credentials(dir string) (tables string, err error) {
	for name, content := range map[string]string{
		"models.json": `{"providers":{"scripted":{"baseUrl":"http://127.0.0.1:4141/v1","api":"openai-completions","models":[{"id":"m"}]}}}`,
		"auth.json":   `{"scripted":{"type":"api_key","key":"sk-e2e-turn"}}`,
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			return "", err
		}
		tables += fmt.Sprintf("[credentials.%s]\nfile = %q\nas = %q\n", name[:len(name)-len(".json")], file, name)
	}
	return tables, nil
}
