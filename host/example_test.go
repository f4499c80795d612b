//go:build unix

package host_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

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

// What happens to plugins is told as events. A host launches nothing before it is initialized.
func ExampleHost_events() {
	ended := make(chan error, 1)
	h := &host.Host{Events: func(e host.Event) {
		switch e.Kind {
		case plugin.EventLaunched:
			fmt.Println(e.Name, "was launched")
		case plugin.EventTerminated:
			ended <- e.Err
		default:
			fmt.Println(e.Name, e.Kind, e.Message)
		}
	}}
	spec := host.Spec{Name: "failing", Args: []string{"false"}}
	_, err := h.Launch(context.Background(), spec)
	fmt.Println(errors.Is(err, host.ErrNotInitialized))
	if err := h.Initialize(plugin.Config{}); err != nil {
		fmt.Println(err)
		return
	}
	defer h.Close(context.Background())
	if _, err := h.Launch(context.Background(), spec); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(<-ended)
	// Output:
	// true
	// failing was launched
	// exit status 1
}

// A program that is not the one that was expected is not run.
func ExampleHost_Launch() {
	h := &host.Host{}
	if err := h.Initialize(plugin.Config{}); err != nil {
		fmt.Println(err)
		return
	}
	sum := sha256.Sum256([]byte("the program that was reviewed"))
	spec := host.Spec{Args: []string{"true"}, SHA256: hex.EncodeToString(sum[:])}
	_, err := h.Launch(context.Background(), spec)
	fmt.Println("another program:", errors.Is(err, plugin.ErrDigest))

	h.Close(context.Background())
	_, err = h.Launch(context.Background(), host.Spec{Args: []string{"true"}})
	fmt.Println("too late:", errors.Is(err, host.ErrClosed))
	// Output:
	// another program: true
	// too late: true
}

// What an admission plugin prints goes to the logger of its context. A check that got no answer refuses for now, one that got a no for good.
func ExampleNewAdmissionPlugin() {
	h := &host.Host{}
	if err := h.Initialize(plugin.Config{}); err != nil {
		fmt.Println(err)
		return
	}
	defer h.Close(context.Background())

	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	ctx := host.WithLogger(context.Background(), logger)
	admissions := host.NewAdmissionPlugin(ctx, h, []string{"echo", "no license"})
	err := admissions.CheckAdmission(plugin.Pin{PackageName: "tools/example", InstanceID: "latest"}).Wait(ctx)
	admissions.Close(ctx)
	switch {
	case errors.Is(err, host.ErrCrashed), errors.Is(err, host.ErrTimeout), errors.Is(err, host.ErrQueueFull):
		fmt.Println("ask again later")
	case err != nil:
		fmt.Println("refused:", err)
	}
	// Output:
	// level=INFO msg="no license" plugin=echo
	// ask again later
}

// An admission plugin is started by the first check. Here it ends without an answer, and that is a refusal.
func ExampleHost_NewAdmissionPlugin() {
	h := &host.Host{AdmissionTimeout: 10 * time.Second}
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
