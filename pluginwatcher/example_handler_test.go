package pluginwatcher_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

func TestExampleHandlerValidates(t *testing.T) {
	for _, test := range []struct {
		name                 string
		supported, announced []string
		permitted, inOldDir  bool
		wantErr              string
	}{
		{name: "same", supported: []string{"v1beta1", "v1beta2"}, announced: []string{"v1beta1", "v1beta2"}},
		{name: "one in common", supported: []string{"v1beta2"}, announced: []string{"v1beta1", "v1beta2"}},
		{name: "none in common", supported: []string{"v1beta1"}, announced: []string{"v1"}, wantErr: "none of the versions"},
		{name: "none announced", supported: []string{"v1beta1"}, wantErr: "none of the versions"},
		{name: "none supported", announced: []string{"v1beta1"}, wantErr: "none of the versions"},
		{
			name: "deprecated directory", supported: []string{"v1beta1"}, announced: []string{"v1beta1"}, inOldDir: true,
			wantErr: "deprecated directory",
		},
		{
			name: "deprecated directory permitted", supported: []string{"v1beta1"}, announced: []string{"v1beta1"}, inOldDir: true,
			permitted: true,
		},
		{name: "permission unused", supported: []string{"v1beta1"}, announced: []string{"v1beta1"}, permitted: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			handler := pluginwatcher.NewExampleHandler(test.supported, test.permitted)
			err := handler.ValidatePlugin("example", "/endpoint", test.announced, test.inOldDir)
			if test.wantErr == "" && err != nil {
				t.Errorf("ValidatePlugin = %v, want no error", err)
			}
			if test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Errorf("ValidatePlugin = %v, want an error with %q", err, test.wantErr)
			}
		})
	}
}

func TestExampleHandlerCallsAnnouncedServices(t *testing.T) {
	for _, test := range []struct {
		name                         string
		served, announced, supported []string
		wantErr                      string
	}{
		{name: "both", served: []string{"v1beta1", "v1beta2"}, announced: []string{"v1beta1", "v1beta2"}},
		{name: "v1beta1 only", served: []string{"v1beta1"}, announced: []string{"v1beta1"}},
		{name: "v1beta2 only", served: []string{"v1beta2"}, announced: []string{"v1beta2"}},
		{name: "unknown has nothing to call", served: []string{"v1beta1"}, announced: []string{"v1beta1", "v1beta3"}},
		{
			name: "unsupported is not called", served: []string{"v1beta1"}, announced: []string{"v1beta1", "v1beta2"},
			supported: []string{"v1beta1"},
		},
		{
			name: "v1beta2 announced, not served", served: []string{"v1beta1"}, announced: []string{"v1beta1", "v1beta2"},
			wantErr: "v1beta2 GetExampleInfo",
		},
		{name: "v1beta1 announced, not served", announced: []string{"v1beta1"}, wantErr: "v1beta1 GetExampleInfo"},
	} {
		t.Run(test.name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "plugin.sock")
			plugin := pluginwatcher.NewTestExamplePlugin("example", "DevicePlugin", socket, test.announced...)
			if err := plugin.Serve(test.served...); err != nil {
				t.Fatal(err)
			}
			defer stop(t, plugin)
			supported := test.supported
			if supported == nil {
				supported = []string{"v1beta1", "v1beta2", "v1beta3"}
			}
			err := pluginwatcher.NewExampleHandler(supported, false).RegisterPlugin("example", socket, test.announced)
			if test.wantErr == "" && err != nil {
				t.Errorf("RegisterPlugin = %v, want no error", err)
			}
			if test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Errorf("RegisterPlugin = %v, want an error with %q", err, test.wantErr)
			}
		})
	}
}

func TestExampleHandlerRefusesAnEndpointWhereNobodyIs(t *testing.T) {
	handler := pluginwatcher.NewExampleHandler([]string{"v1beta1"}, false)
	if err := handler.RegisterPlugin("example", filepath.Join(t.TempDir(), "absent"), []string{"v1beta1"}); err == nil {
		t.Error("RegisterPlugin succeeded")
	}
}

func TestExampleHandlerShowsItsCalls(t *testing.T) {
	handler := pluginwatcher.NewExampleHandler(nil, false)
	for range 100 { // More than are kept, and nobody reads.
		handler.DeRegisterPlugin("busy")
	}
	if got := len(handler.EventChan("busy")); got != 64 {
		t.Errorf("%d calls are kept, want 64", got)
	}

	_ = handler.ValidatePlugin("example", "/endpoint", nil, false)
	_ = handler.RegisterPlugin("example", "/endpoint", nil)
	handler.DeRegisterPlugin("example")
	for _, want := range []string{"ValidatePlugin", "RegisterPlugin", "DeRegisterPlugin"} {
		select {
		case got := <-handler.EventChan("example"):
			if got.String() != want {
				t.Errorf("got call %v, want %s", got, want)
			}
		default:
			t.Fatalf("no call is shown, want %s", want)
		}
	}
}
