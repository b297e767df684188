package workspace

// Dir is a resolved workspace. Close it.
type Dir struct {
	fd   int
	root string
}

// Open resolves a registered root.
func Open(root string) (*Dir, error) { panic("stub") }

// Pin mounts the workspace at target.
func (d *Dir) Pin(target string, readOnly bool) error { panic("stub") }

// Close lets go of the folder. Pins stay.
func (d *Dir) Close() error { panic("stub") }

// PreparePinRoot makes dir a private mount of itself. It is idempotent.
func PreparePinRoot(dir string) error { panic("stub") }

// Unpin removes whatever is mounted at target, and the empty folder. It is
// idempotent.
func Unpin(target string) error { panic("stub") }

// Pins returns the mount points below dir, the deepest first.
func Pins(dir string) ([]string, error) { panic("stub") }

// ReleasePinRoot undoes PreparePinRoot. It fails while a pin is left. It is
// idempotent.
func ReleasePinRoot(dir string) error { panic("stub") }
