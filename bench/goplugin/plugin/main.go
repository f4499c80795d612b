// Plugin is the plugin of the contestant "go-plugin".
package main

import (
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"

	"github.com/patchbay-dev/patchbay/bench/goplugin/example"
)

func main() {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: example.Handshake, Plugins: example.Plugins(), GRPCServer: plugin.DefaultGRPCServer, Logger: hclog.NewNullLogger(),
	})
}
