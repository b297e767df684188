package rootfs

import (
	"path"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
)

// cleanName returns the name of an archive's entry as it is in a manifest. Two
// spellings that every tar writes are taken: "./" in front, and "/" behind a
// folder. Any other that is not the shortest is refused, so that two names are
// of one entry only if they are equal.
func cleanName(name string, isDir bool) (string, error) {
	n := name
	if strings.HasPrefix(n, "/") {
		return "", fail(CodeEscape, nil, "the name %.200q is absolute", name)
	}
	n = strings.TrimPrefix(n, "./")
	if isDir {
		n = strings.TrimSuffix(n, "/")
	}
	switch {
	case n == "" && name == "./", n == "." && name == ".":
		return ".", nil
	case n == "..", strings.HasPrefix(n, "../"), strings.HasSuffix(n, "/.."), strings.Contains(n, "/../"):
		return "", fail(CodeEscape, nil, "the name %.200q has .. in it", name)
	case n == "" || n == "." || n[0] == '/' || path.Clean(n) != n || strings.Contains(n, "\x00"):
		return "", fail(CodeArchiveInvalid, nil, "the name %.200q is not in its shortest form", name)
	}
	return n, nil
}

// checkLength holds a clean name to the limits of the kernel and of artifacts.
func checkLength(name string) error {
	if len(name) > artifact.MaxPathBytes || strings.Count(name, "/") >= artifact.MaxDepth {
		return fail(CodeTooLarge, nil, "the name %.200q is longer than %d bytes or deeper than %d folders", name, artifact.MaxPathBytes, artifact.MaxDepth)
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > maxName {
			return fail(CodeTooLarge, nil, "the name %.200q has a part longer than %d bytes", name, maxName)
		}
	}
	return nil
}

// checkTarget is for a symbolic link. It may lead anywhere, since nobody
// outside of a sandbox follows it.
func checkTarget(name, target string) error {
	if target == "" || len(target) > artifact.MaxPathBytes || strings.Contains(target, "\x00") {
		return fail(CodeArchiveInvalid, nil, "the target of the symlink %.200q is empty, longer than %d bytes, or holds a NUL", name, artifact.MaxPathBytes)
	}
	return nil
}
