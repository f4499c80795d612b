package judged

import (
	"errors"
	"net"
	"os"
	"testing"

	"github.com/patchbay-dev/patchbay/trust"
)

// TestConnectionsOfTheHost: what the host has a connection of its own to is nobody else's endpoint, by whatever path he announces it.
func TestConnectionsOfTheHost(t *testing.T) {
	judge, err := trust.New(trust.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	own, other := net.Pipe()
	defer own.Close()
	defer other.Close()
	host := trust.Account{UID: uint32(os.Geteuid()), Known: true}
	for name, test := range map[string]struct {
		judge   *trust.Judge
		account trust.Account
		refused bool
	}{
		"the host's plugin":      {judge, host, false},
		"somebody's":             {judge, trust.Account{UID: 60001, Known: true}, true},
		"of whom nobody knows":   {judge, trust.Account{}, false},
		"somebody's, not judged": {nil, trust.Account{UID: 60001, Known: true}, false},
	} {
		err := Check(test.judge, Plugin{Type: "T", Account: test.account}, "/go-plugin/127.0.0.1:1", own)
		refusal, ok := errors.AsType[*trust.Refusal](err)
		if ok != test.refused || ok && refusal.Reason != trust.Endpoint {
			t.Errorf("%s: %v", name, err)
		}
	}
}
