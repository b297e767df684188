package wire

import (
	"strings"
	"unicode/utf8"
)

// checkPath lets an absolute path in its shortest form through, and "".
func checkPath(s string) error {
	if s == "" {
		return nil
	}
	if err := check(s[0] == '/', CodePathRelative, "the path %.80q is not absolute", s); err != nil {
		return err
	}
	return checkElements("path", s[1:])
}

// checkFolder lets a relative path in its shortest form through, and "".
func checkFolder(s string) error {
	if s == "" {
		return nil
	}
	if err := check(s[0] != '/', CodePathAbsolute, "the folder %.80q is absolute; it is relative to its workspace", s); err != nil {
		return err
	}
	return checkElements("folder", s)
}

// checkElements checks what stands between the slashes. It takes no path
// apart that is too long to be looked at.
func checkElements(field, s string) error {
	err := first(
		check(len(s) < MaxPath, CodePathTooLong, "the %s has %d bytes, the limit is %d", field, len(s), MaxPath),
		check(!strings.ContainsRune(s, 0), CodePathNUL, "the %s contains a NUL byte", field),
		check(utf8.ValidString(s), CodeInvalidMessage, "the %s is not UTF-8", field),
	)
	if err != nil {
		return err
	}
	for element := range strings.SplitSeq(s, "/") {
		err := first(
			check(element != "..", CodePathParent, "the %s %.80q has an element \"..\"", field, s),
			check(element != "" && element != ".", CodePathNotClean, "the %s %.80q is not in its shortest form: \".\", \"//\" and a \"/\" at the end are refused", field, s),
			check(len(element) <= MaxPathElement, CodePathTooLong, "an element of the %s has %d bytes, the limit is %d", field, len(element), MaxPathElement),
		)
		if err != nil {
			return err
		}
	}
	return nil
}
