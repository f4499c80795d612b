package fleet_test

import (
	"context"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/fleet"
)

// TestCallWithoutPresence: a node that lives is called although its presence has ended, as it has after etcd was away for long.
func TestCallWithoutPresence(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t), newAuthority(t)
	a, caller := newCaller(t, patchbay, "a", etcd.client, ca, allowNodes, ""), newCaller(t, patchbay, "caller", etcd.client, ca, allowNodes, "")
	a.start()
	caller.start()
	a.echo(nil)
	caller.inFleet(1)
	answersFrom(t, caller.caller(""), "a")
	do(t, "end the presence", func(ctx context.Context) error {
		presence, err := etcd.admin().Get(ctx, fleet.Space{}.NodeRange("a")+"presence")
		if err == nil && len(presence.Kvs) > 0 {
			_, err = etcd.admin().Revoke(ctx, clientv3.LeaseID(presence.Kvs[0].Lease))
		}
		return err
	})
	eventually(t, "the node is unreachable", func() bool {
		output, err := caller.try("fleet", "nodes", "--state", "unreachable", "-o", "name")
		return err == nil && strings.TrimSpace(output) == "a"
	})
	if _, err := answers(t, caller.caller("")); err != nil {
		t.Errorf("the first call then: %v", err)
	}
}
