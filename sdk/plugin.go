package sdk

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/foreign"
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

// Plugin says what a plugin is and how it serves. Type, Name, Versions and Register are required.
type Plugin struct {
	// Type is the kind of service that the plugin offers, for example "CSIPlugin"; hosts choose its handler by it. It has no slash.
	Type string
	// Name is unique within the type.
	Name string
	// Versions are the versions of the services, the preferred one first.
	Versions []string
	// Register registers the plugin's own services. A health or reflection service among them takes the place of the SDK's.
	Register func(grpc.ServiceRegistrar)

	// Socket is the path at which a plugin that neither a host launched nor systemd activated makes its socket. The directory must exist.
	Socket string
	// Mode are the permission bits of the socket (default 0600); who connects needs write permission. It does not concern a socket of systemd.
	Mode fs.FileMode
	// Endpoint is the absolute path of another socket, on which another server answers for the plugin's own services. Empty: they answer
	// on the plugin's socket. With it, Register may be nil.
	Endpoint string
	// ServerOptions are further options of the gRPC server, such as interceptors or limits.
	ServerOptions []grpc.ServerOption

	// TakeOver lets the plugin replace an older instance of itself, with the same type and name, that serves at its path; without it,
	// such an instance is an error. See [Serve]. It works on Linux.
	TakeOver bool
	// HandOver bounds how long an instance that takes over waits to be registered before it ends the old one all the same, because there
	// may be no host at the moment (default 10 s).
	HandOver time.Duration
	// ExitOnRefusal makes Serve end with a [*RefusedError] when a host refuses the plugin. Else it logs that and serves on: hosts ask again.
	ExitOnRefusal bool
	// Drain bounds how long calls in progress may take when the plugin stops; what is left then is cut off (default 4 s, within the 5 s
	// that a host gives a plugin that it launched).
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
	wrong = append(wrong, foreign.Name("Plugin.Type", p.Type, maxText), foreign.Name("Plugin.Name", p.Name, maxText))
	if p.Type != "" && !foreign.IsType(p.Type) {
		wrong = append(wrong, fmt.Errorf("Plugin.Type %q has a slash, which ends the type in TYPE/NAME", p.Type))
	}
	if n := len(p.Versions); n == 0 || n > maxVersions {
		wrong = append(wrong, fmt.Errorf("Plugin.Versions has %d entries, want 1 to %d", n, maxVersions))
	}
	for i, version := range p.Versions {
		wrong = append(wrong, foreign.Name(fmt.Sprintf("Plugin.Versions[%d]", i), version, maxVersion))
	}
	if p.Register == nil && p.Endpoint == "" {
		wrong = append(wrong, errors.New("Plugin.Register is nil, so the plugin would offer nothing"))
	}
	if p.Endpoint != "" && !filepath.IsAbs(p.Endpoint) {
		wrong = append(wrong, fmt.Errorf("Plugin.Endpoint %q is not absolute, and hosts run in other directories", p.Endpoint))
	}
	if p.Mode&^fs.ModePerm != 0 {
		wrong = append(wrong, fmt.Errorf("Plugin.Mode %v has more than permission bits", p.Mode))
	}
	if p.Drain < 0 || p.HandOver < 0 {
		wrong = append(wrong, errors.New("Plugin.Drain or Plugin.HandOver is negative"))
	}
	return errors.Join(wrong...)
}

func (p Plugin) String() string { return p.Type + "/" + p.Name }
