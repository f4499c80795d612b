package host_test

import (
	"context"
	"fmt"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/plugin"
)

// With a cgroup for its plugins, as systemd delegates one (Delegate=yes), a host launches none outside of it.
func ExampleHost_cgroup() {
	h := &host.Host{Cgroup: "/sys/fs/cgroup/not/there"}
	if err := h.Initialize(plugin.Config{}); err != nil {
		fmt.Println(err)
		return
	}
	defer h.Close(context.Background())
	_, err := h.LaunchPlugin(context.Background(), []string{"true"}, nil)
	fmt.Println("launched elsewhere:", err == nil)
	// Output: launched elsewhere: false
}
