package scaffold

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// goVersion is the language version of Patchbay's go.mod; a test compares them.
const goVersion = "1.26.0"

var moduleLine = regexp.MustCompile(`(?m)^module[ \t]+\S+[ \t]*$`)

// moduleFiles returns go.mod, and go.sum where it is known.
func (o Options) moduleFiles() ([]File, error) {
	if o.Replace == "" {
		text := fmt.Sprintf("module %s\n\ngo %s\n\nrequire %s %s\n", o.Module, goVersion, module, o.Version)
		return []File{{"go.mod", []byte(text)}}, nil
	}
	dir, err := filepath.Abs(o.Replace)
	if err != nil {
		return nil, err
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return nil, fmt.Errorf("%w: no source to build with: %w", ErrOptions, err)
	}
	sum, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: no source to build with: %w", ErrOptions, err)
	}
	line := moduleLine.FindIndex(mod)
	if len(line) != 2 || !slices.Equal(strings.Fields(string(mod[line[0]:line[1]])), []string{"module", module}) {
		return nil, fmt.Errorf("%w: %s is not the source of %s", ErrOptions, dir, module)
	}
	// With the very requirements and sums of the source, nothing has to be looked up. "go mod tidy" removes those that are too many.
	var text bytes.Buffer
	text.Write(mod[:line[0]])
	fmt.Fprintf(&text, "module %s\n\nrequire %s v0.0.0\n\nreplace %s => %s", o.Module, module, module, quoted(dir))
	text.Write(mod[line[1]:])
	files := []File{{"go.mod", text.Bytes()}}
	if len(sum) > 0 {
		files = append(files, File{"go.sum", sum})
	}
	return files, nil
}

// quoted returns a path as go.mod takes it.
func quoted(path string) string {
	if regexp.MustCompile(`^[A-Za-z0-9_./~+-]+$`).MatchString(path) {
		return path
	}
	return strconv.Quote(path)
}
