// Kubelet is the contestant "kubelet": the plugin manager of the kubelet, alone. It is a program and a module of its own, so that the
// dependencies of Kubernetes neither count in the figures of the others nor choose the versions that those are built with.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"

	"github.com/patchbay-dev/patchbay/bench/internal/manager"
)

func main() {
	if err := manager.Serve(run, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "kubelet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, j *manager.Journal) error {
	klog.SetLogger(logr.Discard())
	m := pluginmanager.NewPluginManager(dir, &record.FakeRecorder{})
	m.AddHandler(manager.PluginType, handler{j})
	// What appears before it watches is found when it does, so it counts as ready.
	j.Ready()
	m.Run(ctx, config.NewSourcesReady(func(sets.Set[string]) bool { return true }), ctx.Done())
	return nil
}

// handler notes when it is called. The plugin manager says nothing of what it does after RegisterPlugin, which is to tell the plugin and
// to close the connection; the benchmark waits until the plugin is told.
type handler struct{ journal *manager.Journal }

func (handler) ValidatePlugin(context.Context, string, string, []string) error { return nil }

func (h handler) RegisterPlugin(_ context.Context, name, _ string, _ []string, _ *time.Duration) error {
	defer h.journal.Settled(name, "")
	return h.journal.Registered(name)
}

func (h handler) DeRegisterPlugin(_ context.Context, name, _ string) {
	if err := h.journal.Deregistered(name); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	h.journal.Gone(name, "")
}
