package cli

import (
	"github.com/patchbay-dev/patchbay/daemon"
	"github.com/patchbay-dev/patchbay/fleet"
	"github.com/patchbay-dev/patchbay/internal/config"
)

// fleetConfig returns what the configuration of the fleet means for the daemon.
func fleetConfig(c config.Fleet) daemon.FleetConfig {
	e := c.Etcd
	return daemon.FleetConfig{
		Etcd: fleet.Etcd{
			Endpoints: e.Endpoints, CA: e.CA, Cert: e.Cert, Key: e.Key, ServerName: e.ServerName, User: e.User, PasswordFile: e.PasswordFile,
			Timeout: e.Timeout,
		},
		Space:     fleet.Space{Prefix: e.Prefix, Namespace: e.Namespace},
		Node:      c.Node,
		Address:   c.Address,
		Presence:  c.Presence,
		Retention: c.Retention,
	}
}
