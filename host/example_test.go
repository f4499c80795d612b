//go:build unix

package host_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/plugin"
)

// What a plugin prints goes to the logger in PluginsContext.
func ExampleHost() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	h := &host.Host{PluginsContext: host.WithLogger(context.Background(), logger)}
	if err := h.Initialize(plugin.Config{ServiceURL: "https://packages.example"}); err != nil {
		fmt.Println(err)
		return
	}
	defer h.Close(context.Background())

	p, err := h.LaunchPlugin(context.Background(), []string{"echo", "hello"}, &host.Controller{})
	if err != nil {
		fmt.Println(err)
		return
	}
	<-p.Done()
	h.Close(context.Background()) // by then the logger has all records
	fmt.Println(errors.Is(p.Err(), host.ErrTerminated))
	// Output:
	// level=INFO msg=hello plugin=echo
	// true
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == "stream" {
		return slog.Attr{}
	}
	return a
}

// An admission plugin is started by the first check. Here it ends without an answer, and that is a refusal.
func ExampleHost_NewAdmissionPlugin() {
	h := &host.Host{}
	if err := h.Initialize(plugin.Config{ServiceURL: "https://packages.example"}); err != nil {
		fmt.Println(err)
		return
	}
	defer h.Close(context.Background())

	admissions, err := h.NewAdmissionPlugin([]string{"true"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer admissions.Close(context.Background())
	pin := plugin.Pin{PackageName: "tools/example", InstanceID: "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFUC"}
	err = admissions.CheckAdmission(pin).Wait(context.Background())
	fmt.Println(errors.Is(err, host.ErrCrashed))
	// Output: true
}
