// Plugin is a plugin to try a host with: it offers the v1beta1 example service on a socket until it is interrupted, and prints what
// the host tells it.
//
//	go run ./plugin /tmp/plugins/hello.sock ExamplePlugin hello
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: plugin SOCKET TYPE NAME")
		os.Exit(2)
	}
	// The host may run in another directory, so the path that the plugin announces has to be absolute.
	socket, err := filepath.Abs(os.Args[1])
	if err == nil {
		err = run(socket, os.Args[2], os.Args[3])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "plugin:", err)
		os.Exit(1)
	}
}

func run(socket, ptype, name string) error {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)

	plugin := pluginwatcher.NewTestExamplePlugin(name, ptype, socket, "v1beta1")
	if err := plugin.Serve("v1beta1"); err != nil {
		return err
	}
	for {
		select {
		case status := <-plugin.Statuses():
			fmt.Printf("registered: %t %s\n", status.PluginRegistered, status.Error)
		case <-interrupted:
			return plugin.Stop()
		}
	}
}
