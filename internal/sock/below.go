package sock

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
)

// errNotBelow is the error of DialBelow for a path that does not lie below its root.
func errNotBelow(root, path string) error {
	return fmt.Errorf("connect %s: it does not lie below %s: %w", path, root, syscall.EINVAL)
}

// below returns the elements of a path below root.
func below(root, path string) ([]string, bool) {
	rel, err := filepath.Rel(root, path)
	if err != nil || !filepath.IsLocal(rel) || rel == "." {
		return nil, false
	}
	return strings.Split(rel, string(filepath.Separator)), true
}
