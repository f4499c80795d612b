package host_test

import (
	"context"
	"testing"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/plugin"
)

// What hosts of CIPD's are written against: each name and signature of the documented package.
var (
	_ plugin.Host            = (*host.Host)(nil)
	_ plugin.AdmissionPlugin = (*host.AdmissionPlugin)(nil)
	_ plugin.Promise         = (*host.Promise)(nil)

	_ func(context.Context, *host.Host, []string) *host.AdmissionPlugin                          = host.NewAdmissionPlugin
	_ func(*host.AdmissionPlugin, plugin.Pin) plugin.Promise                                     = (*host.AdmissionPlugin).CheckAdmission
	_ func(*host.AdmissionPlugin)                                                                = (*host.AdmissionPlugin).ClearCache
	_ func(*host.AdmissionPlugin, context.Context)                                               = (*host.AdmissionPlugin).Close
	_ func(*host.AdmissionPlugin) string                                                         = (*host.AdmissionPlugin).Executable
	_ func(*host.Host, context.Context)                                                          = (*host.Host).Close
	_ func(*host.Host) plugin.Config                                                             = (*host.Host).Config
	_ func(*host.Host, plugin.Config) error                                                      = (*host.Host).Initialize
	_ func(*host.Host, context.Context, []string, *host.Controller) (*host.PluginProcess, error) = (*host.Host).LaunchPlugin
	_ func(*host.Host, []string) (plugin.AdmissionPlugin, error)                                 = (*host.Host).NewAdmissionPlugin
	_ func(*host.PluginProcess) <-chan struct{}                                                  = (*host.PluginProcess).Done
	_ func(*host.PluginProcess) error                                                            = (*host.PluginProcess).Err
	_ func(*host.PluginProcess, context.Context) error                                           = (*host.PluginProcess).Terminate
	_ func(*host.Promise, context.Context) error                                                 = (*host.Promise).Wait
	_ pluginv1.AdmissionsServer                                                                  = host.Controller{}.Admissions
)

// TestDocumentedErrors: the errors have the documented texts.
func TestDocumentedErrors(t *testing.T) {
	for want, err := range map[string]error{
		"the admission plugin is terminating": host.ErrAborted,
		"terminated with 0 exit code":         host.ErrTerminated,
	} {
		if err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
	h := &host.Host{}
	if err := h.Initialize(plugin.Config{ServiceURL: "https://packages.example"}); err != nil {
		t.Fatal(err)
	}
	defer h.Close(t.Context())
	a := host.NewAdmissionPlugin(t.Context(), h, []string{"/no/such/plugin"})
	a.Close(t.Context())
	err := a.CheckAdmission(plugin.Pin{PackageName: "p", InstanceID: "i"}).Wait(t.Context())
	if want := "the admission plugin is terminating"; err == nil || err.Error()[max(0, len(err.Error())-len(want)):] != want {
		t.Errorf("after Close a check says %v", err)
	}
}
