package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/fleet/nodecall"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// ErrNoFleet is the error of a request about the fleet on a node that belongs to none.
var ErrNoFleet = errors.New("this node belongs to no fleet: name the endpoints of etcd with fleet.etcd.endpoints in its configuration")

// IsEnabled reports whether the node belongs to a fleet.
func IsEnabled(c config.Fleet) bool { return len(c.Etcd.Endpoints) > 0 }

// Name returns the name of the node; empty if it is not known.
func Name(c config.Fleet) string {
	if c.Node != "" {
		return c.Node
	}
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	return strings.ToLower(host)
}

// Listen listens for calls from other nodes; nil if the configuration asks for no listener.
func Listen(ctx context.Context, c config.Fleet) (net.Listener, error) {
	if !IsEnabled(c) || c.Serve.Listen == "" {
		return nil, nil
	}
	listener, err := server.ListenTCP(ctx, c.Serve.Listen)
	if err != nil {
		return nil, fmt.Errorf("cannot take calls from other nodes: %w; choose another fleet.serve.listen", err)
	}
	return listener, nil
}

// Validate calls check for each error in a configuration, with the path of the value in the configuration file.
func Validate(c config.Fleet, check func(field string, err error)) {
	if !IsEnabled(c) {
		rest := c.Etcd
		if rest.CA+rest.Cert+rest.Key+rest.ServerName+rest.User+rest.PasswordFile != "" {
			check("fleet.etcd", errors.New("there is no endpoint: name at least one with fleet.etcd.endpoints, or leave the rest out too"))
		}
		if c.Serve.Listen != "" || len(c.Serve.Allow) > 0 || tlsOf(c) != (nodecall.TLS{}) {
			check("fleet.serve", errors.New("the node belongs to no fleet: name etcd with fleet.etcd.endpoints"))
		}
		return
	}
	etcd := fleet.Etcd(c.Etcd)
	check("fleet.etcd", etcd.Validate())
	check("fleet.etcd.namespace", etcd.Space().Validate())
	if c.Node != "" {
		check("fleet.node", keys.ValidateNode(c.Node))
	}
	check("fleet.presence", fleet.ValidateTimes(cmp.Or(c.Presence, fleet.DefaultPresence), cmp.Or(c.Retention, fleet.DefaultRetention)))
	check("fleet.labels", keys.ValidateLabels(c.Labels))
	if c.Drift < 0 {
		check("fleet.drift", fmt.Errorf("%v is negative: use a time above zero, or leave it out", c.Drift))
	}
	validateServe(c, check)
	for _, text := range c.Dispense {
		if _, ok := plugin.ParseName(text); !ok {
			check("fleet.dispense", fmt.Errorf("%q is not a plugin: write TYPE/NAME", text))
		}
	}
	for _, ptype := range c.Exclusive {
		check("fleet.exclusive", untrusted.CheckType(ptype))
	}
}

// validateServe validates the rules for calls and offers.
func validateServe(c config.Fleet, check func(field string, err error)) {
	files := tlsOf(c)
	if c.Serve.Listen != "" {
		if _, port, err := net.SplitHostPort(c.Serve.Listen); err != nil || port == "" {
			check("fleet.serve.listen", fmt.Errorf("%q is not HOST:PORT: write it as 10.0.0.7:7443 or :7443", c.Serve.Listen))
		}
		if files == (nodecall.TLS{}) {
			check("fleet.serve", errors.New("calls from other nodes need a certificate: name the files cert, key and ca"))
		}
	}
	if files != (nodecall.TLS{}) && (files.CA == "" || files.Cert == "" || files.Key == "") {
		check("fleet.serve", errors.New("calls between nodes need a certificate: name the files ca, cert and key"))
	}
	rule := func(field string, i int, wrong ...error) {
		if err := cmp.Or(wrong...); err != nil {
			check(field, fmt.Errorf("rule %d: %w", i+1, err))
		}
	}
	for i, a := range c.Serve.Allow {
		rule("fleet.serve.allow", i, access.ValidatePatterns("identity", a.Identity), access.ValidatePatterns("types", a.Types...),
			access.ValidatePatterns("names", a.Names...), access.ValidatePatterns("methods", a.Methods...))
	}
	for i, o := range c.Offers {
		rule("fleet.offers", i, access.ValidatePatterns("node", o.Node), access.ValidatePatterns("types", o.Types...),
			access.ValidatePatterns("names", o.Names...))
	}
	if name := c.Serve.ServerName; len(c.Offers) > 0 && name != "" && !strings.Contains(name, "{node}") {
		check("fleet.offers",
			errors.New("fleet.serve.serverName is the same for all nodes, so that each can pass for any other and offer what "+
				"that one may: put {node} into it, and into the certificates the name of the node"))
	}
}

// tlsOf returns the certificate of the node and the authorities that it trusts, for calls in both directions; zero without a certificate.
func tlsOf(c config.Fleet) nodecall.TLS {
	return nodecall.TLS{CA: c.Serve.CA, Cert: c.Serve.Cert, Key: c.Serve.Key, ServerName: c.Serve.ServerName}
}

// settingsOf returns the settings that all nodes must share, as text.
func settingsOf(c config.Fleet) string {
	text, _ := json.Marshal(struct { // it cannot fail: the values are strings
		Exclusive []string `json:"exclusive"`
		Presence  string   `json:"presence"`
	}{append([]string{}, slices.Compact(slices.Sorted(slices.Values(c.Exclusive)))...), cmp.Or(c.Presence, fleet.DefaultPresence).String()})
	return string(text)
}

// addressOf returns the address at which other nodes reach this one: the configured address, or that of the listener; empty for none.
func addressOf(c config.Fleet, listener net.Listener) (string, error) {
	if c.Address != "" || listener == nil {
		return c.Address, nil
	}
	addr, ok := listener.Addr().(*net.TCPAddr)
	if !ok || !addr.IP.IsUnspecified() {
		return listener.Addr().String(), nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("cannot find out the host name for other nodes: %w; set fleet.address", err)
	}
	return net.JoinHostPort(host, fmt.Sprint(addr.Port)), nil
}
