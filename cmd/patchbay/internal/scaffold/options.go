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

	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// ErrOptions is wrapped by errors in the options.
var ErrOptions = errors.New("cannot write a plugin")

// ErrVersion is wrapped by the error for a version that was never released, if the other options are right. It wraps [ErrOptions].
var ErrVersion = fmt.Errorf("%w: no released version", ErrOptions)

const module = "github.com/patchbay-dev/patchbay"

var (
	typeSyntax = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)
	// A name is written unquoted into Go strings, Makefiles, unit files and shell commands.
	nameSyntax  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`)
	pathElement = regexp.MustCompile(`^[A-Za-z0-9_~-]([A-Za-z0-9._~-]*[A-Za-z0-9_~-])?$`)
	released    = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)
)

// otherNames maps words that users mistake for plugin types to these types.
var otherNames = map[string]string{
	"csi": "CSIPlugin", "csiplugin": "CSIPlugin", "csi-node": "CSIPlugin", "csi-controller": "CSIPlugin",
	"device": "DevicePlugin", "deviceplugin": "DevicePlugin", "dra": "DRAPlugin", "draplugin": "DRAPlugin",
}

func (o Options) check() error {
	if right := otherNames[strings.ToLower(o.Type)]; right != "" && right != o.Type {
		return fmt.Errorf("%w: type %q is not a plugin type, write %s", ErrOptions, o.Type, right)
	}
	if len(o.Type) > 63 || !typeSyntax.MatchString(o.Type) {
		return fmt.Errorf("%w: type %q must have up to 63 letters, digits, dots and dashes, such as MyPlugin", ErrOptions, o.Type)
	}
	if err := checkName(o.Type, o.Name); err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	if err := checkModule(o.Module); err != nil {
		return fmt.Errorf("%w: module %q %w", ErrOptions, o.Module, err)
	}
	if o.Replace == "" && !released.MatchString(o.Version) {
		return fmt.Errorf("%w of %s is called %q; name one, such as v1.2.3, or the directory of the source", ErrVersion, module, o.Version)
	}
	return nil
}

// checkName returns an error if hosts would refuse the name.
func checkName(ptype, name string) error {
	if len(name) > 253 || !nameSyntax.MatchString(name) || strings.Contains(name, "//") || strings.Contains(name, "..") {
		return fmt.Errorf("name %q must have up to 253 letters, digits, dots, dashes, underscores and slashes", name)
	}
	return untrusted.PluginName(ptype, name)
}

func checkModule(name string) error {
	if name == module || strings.HasPrefix(name, module+"/") {
		return errors.New("is Patchbay's own")
	}
	for element := range strings.SplitSeq(name, "/") {
		if !pathElement.MatchString(element) || strings.HasPrefix(element, "-") {
			return errors.New("is not the path of a Go module; write, for example, example.com/widget")
		}
	}
	return nil
}

// goVersion is the language version in Patchbay's go.mod; a test compares them.
const goVersion = "1.26.0"

var moduleLine = regexp.MustCompile(`(?m)^module[ \t]+\S+[ \t]*$`)

// moduleFiles returns go.mod and, if the source is local, go.sum.
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
	// With all requirements and sums of the source, Go needs no network. "go mod tidy" removes the unused ones.
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

func quoted(path string) string {
	if regexp.MustCompile(`^[A-Za-z0-9_./~+-]+$`).MatchString(path) {
		return path
	}
	return strconv.Quote(path)
}
