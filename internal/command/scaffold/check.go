package scaffold

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

// ErrOptions is wrapped by errors of what the caller gave.
var ErrOptions = errors.New("cannot write a plugin")

// ErrVersion is wrapped by the error of a version that none was released as, when all else is right. It wraps [ErrOptions].
var ErrVersion = fmt.Errorf("%w: no released version", ErrOptions)

// module is the module of Patchbay.
const module = "github.com/patchbay-dev/patchbay"

var (
	typeSyntax = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)
	// What a name may have goes unquoted into Go strings, Makefiles, unit files and shells.
	nameSyntax  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`)
	pathElement = regexp.MustCompile(`^[A-Za-z0-9_~-]([A-Za-z0-9._~-]*[A-Za-z0-9_~-])?$`)
	released    = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)
)

// otherNames are words that are easily taken for a plugin type.
var otherNames = map[string]string{
	"csi": "CSIPlugin", "csiplugin": "CSIPlugin", "csi-node": "CSIPlugin", "csi-controller": "CSIPlugin",
	"device": "DevicePlugin", "deviceplugin": "DevicePlugin", "dra": "DRAPlugin", "draplugin": "DRAPlugin",
}

func (o Options) check() error {
	if right := otherNames[strings.ToLower(o.Type)]; right != "" && right != o.Type {
		return fmt.Errorf("%w: type %q is no plugin type, write %s", ErrOptions, o.Type, right)
	}
	if len(o.Type) > 63 || !typeSyntax.MatchString(o.Type) {
		return fmt.Errorf("%w: type %q is not made of up to 63 letters, digits, dots and dashes, as MyPlugin is", ErrOptions, o.Type)
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

// checkName returns what hosts would not like about a name.
func checkName(ptype, name string) error {
	if len(name) > 253 || !nameSyntax.MatchString(name) || strings.Contains(name, "//") || strings.Contains(name, "..") {
		return fmt.Errorf("name %q is not made of up to 253 letters, digits, dots, dashes, underscores and slashes", name)
	}
	return foreign.PluginName(ptype, name)
}

func checkModule(name string) error {
	if name == module || strings.HasPrefix(name, module+"/") {
		return errors.New("is Patchbay's own")
	}
	for element := range strings.SplitSeq(name, "/") {
		if !pathElement.MatchString(element) || strings.HasPrefix(element, "-") {
			return errors.New("is no path of a Go module; write, for example, example.com/widget")
		}
	}
	return nil
}
