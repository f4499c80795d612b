package goplugin

import (
	"net"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/host"
)

// TestBrokeredByAnotherUser: the library itself connects to what a plugin brokers, so that of a plugin of another user is refused.
func TestBrokeredByAnotherUser(t *testing.T) {
	for user, refused := range map[string]bool{"": false, "12345": true} {
		p := &process{life: &life{spec: host.Spec{User: user}}}
		if network, address, err := p.PluginToHost("unix", "/s"); network != "unix" || address != "/s" || err != nil {
			t.Errorf("user %q: where it serves: %s %s, %v", user, network, address, err)
		}
		p.address = &net.UnixAddr{Name: "/s", Net: "unix"}
		_, _, err := p.PluginToHost("unix", "/root.sock")
		if got := err != nil && strings.Contains(err.Error(), `cannot connect to unix address "/root.sock"`); got != refused {
			t.Errorf("user %q: what it brokers: %v", user, err)
		}
	}
}
