package cli

import (
	"github.com/patchbay-dev/patchbay/daemon"
	"github.com/patchbay-dev/patchbay/fleet"
	"github.com/patchbay-dev/patchbay/internal/command/config"
)

// fleetConfig returns what the configuration of the fleet means for the daemon.
func fleetConfig(c config.Fleet) daemon.FleetConfig {
	e := c.Etcd
	serve := daemon.FleetServe{
		Listen: c.Serve.Listen,
		TLS:    fleet.TLS{CA: c.Serve.CA, Cert: c.Serve.Cert, Key: c.Serve.Key, ServerName: c.Serve.ServerName},
	}
	for _, a := range c.Serve.Allow {
		serve.Allow = append(serve.Allow, daemon.FleetAllow(a))
	}
	return daemon.FleetConfig{
		Etcd: fleet.Etcd{
			Endpoints: e.Endpoints, CA: e.CA, Cert: e.Cert, Key: e.Key, ServerName: e.ServerName, User: e.User, PasswordFile: e.PasswordFile,
			Timeout: e.Timeout,
		},
		Space:     fleet.Space{Prefix: e.Prefix, Namespace: e.Namespace},
		Node:      c.Node,
		Address:   c.Address,
		Serve:     serve,
		Exclusive: c.Exclusive,
		Presence:  c.Presence,
		Retention: c.Retention,
	}
}
