package sdk

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const (
	defaultMode     = 0o600
	defaultDrain    = 4 * time.Second
	defaultHandOver = 10 * time.Second

	// What hosts accept at most by default.
	maxText     = 4096
	maxVersions = 64
	maxVersion  = 64 // bytes of one
)

// Plugin describes a plugin and how it serves. Type, Name, Versions and Register are required.
type Plugin struct {
	// Type is the kind of service that the plugin offers, for example "CSIPlugin"; hosts choose its handler by it. It has no slash.
	Type string
	// Name is unique within the type.
	Name string
	// Versions are the versions of the services, the preferred one first.
	Versions []string
	// Register registers the plugin's own services. A health or reflection service among them replaces the SDK's.
	Register func(grpc.ServiceRegistrar)

	// Socket is where the plugin creates its socket, unless a host launched it or systemd activated it. The directory must exist.
	Socket string
	// Mode is the socket's file mode (default 0600); connecting requires write permission. It does not apply to a socket from systemd.
	Mode fs.FileMode
	// Endpoint is the absolute path of another socket, where another server provides the plugin's own services; Register may then be nil.
	// If empty, they are served on the plugin's socket.
	Endpoint string
	// ServerOptions are further options of the gRPC server, such as interceptors or limits.
	ServerOptions []grpc.ServerOption

	// TakeOver lets the plugin replace an older instance with the same type and name that serves at its path; otherwise that is an error.
	// See [Serve]. Linux only.
	TakeOver bool
	// HandOver is how long a new instance waits to be registered before it stops the old one anyway, in case there is no host at the moment
	// (default 10 s).
	HandOver time.Duration
	// ExitOnRefusal makes Serve return a [*RefusedError] when a host refuses the plugin. Otherwise Serve logs the refusal and continues,
	// since hosts ask again.
	ExitOnRefusal bool
	// Drain is how long calls in progress may take when the plugin stops, before they are cut off (default 4 s, within the 5 s that a host
	// gives a launched plugin).
	Drain time.Duration
}

// withDefaults returns the plugin with its defaults in place, or what is wrong with it.
func (p Plugin) withDefaults() (Plugin, error) {
	if err := p.check(); err != nil {
		return p, fmt.Errorf("cannot serve plugin %s: %w", p, err)
	}
	p.Mode = cmp.Or(p.Mode, defaultMode)
	p.Drain = cmp.Or(p.Drain, defaultDrain)
	p.HandOver = cmp.Or(p.HandOver, defaultHandOver)
	return p, nil
}

func (p Plugin) check() error {
	var wrong []error
	wrong = append(wrong, untrusted.Name("Plugin.Type", p.Type, maxText), untrusted.Name("Plugin.Name", p.Name, maxText))
	if strings.Contains(p.Type, "/") {
		wrong = append(wrong, fmt.Errorf("Plugin.Type %q has a slash, which ends the type in TYPE/NAME", p.Type))
	}
	if n := len(p.Versions); n == 0 || n > maxVersions {
		wrong = append(wrong, fmt.Errorf("Plugin.Versions has %d entries, want 1 to %d", n, maxVersions))
	}
	for i, version := range p.Versions {
		wrong = append(wrong, untrusted.Name(fmt.Sprintf("Plugin.Versions[%d]", i), version, maxVersion))
	}
	if p.Register == nil && p.Endpoint == "" {
		wrong = append(wrong, errors.New("Plugin.Register is nil, so the plugin would offer nothing"))
	}
	wrong = append(wrong, untrusted.Check("Plugin.Endpoint", p.Endpoint, maxText))
	if p.Endpoint != "" && !filepath.IsAbs(p.Endpoint) {
		wrong = append(wrong, fmt.Errorf("Plugin.Endpoint %q is not absolute, and hosts run in other directories", p.Endpoint))
	}
	if p.Mode&^fs.ModePerm != 0 {
		wrong = append(wrong, fmt.Errorf("Plugin.Mode %v has more than permission bits", p.Mode))
	}
	if p.Drain < 0 || p.HandOver < 0 {
		wrong = append(wrong, errors.New("Plugin.Drain or Plugin.HandOver is negative"))
	}
	if i := slices.Index(p.ServerOptions, nil); i >= 0 {
		wrong = append(wrong, fmt.Errorf("Plugin.ServerOptions[%d] is nil", i))
	}
	return errors.Join(wrong...)
}

func (p Plugin) String() string { return p.Type + "/" + p.Name }
