package daemon

import (
	"context"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/plugin"
)

// admission makes the admission plugin, whose log is the daemon's; nil if there is none.
func (d *Daemon) admission() func(*host.Host) (plugin.AdmissionPlugin, error) {
	spec := d.config.Admission
	if len(spec.Args) == 0 {
		return nil
	}
	return func(h *host.Host) (plugin.AdmissionPlugin, error) {
		return host.NewAdmission(host.WithLogger(context.Background(), d.log), h, spec), nil
	}
}
