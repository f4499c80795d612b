package fleet_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

// TestOffers: a node is not called for a plugin that fleet.offers does not let it offer, whatever it publishes; a reload changes that.
func TestOffers(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	const offers = `  offers: [{node: "good-*", types: [Echo], names: [one]}]` + "\n"
	caller := newCaller(t, patchbay, "caller", etcd.client, ca, `[]`, offers)
	good := newCaller(t, patchbay, "good-1", etcd.client, ca, allowNodes, "")
	bad := newCaller(t, patchbay, "bad", etcd.client, ca, allowNodes, "")
	for _, d := range []*daemon{caller, good, bad} {
		d.start()
	}
	bad.echo(nil)
	caller.inFleet(1)
	if _, err := answers(t, caller.caller("")); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("no node that has it may offer it: %v", err)
	}
	good.echo(nil)
	// What finds nodes for calls follows etcd for itself, and may learn of the node later than the list of the fleet.
	eventually(t, "the node that may offer it is called", func() bool {
		got, err := answers(t, caller.caller(""))
		return got == "good-1" && err == nil
	})
	for range 20 {
		answersFrom(t, caller.caller(""), "good-1")
	}
	if _, err := answers(t, caller.caller("bad")); grpcstatus.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "fleet.offers") {
		t.Errorf("a node that may not offer it, by name: %v", err)
	}
	if out, err := caller.try("call", "--node", "good-1", "Echo/one", "grpc.health.v1.Health/Check"); err != nil {
		t.Errorf("a node that may offer it, by name: %s, %v", out, err)
	}
	caller.configure(`node: "good-*"`, `node: "bad"`)
	if out := caller.run("reload"); !strings.Contains(out, "fleet.offers") {
		t.Errorf("reload prints %q", out)
	}
	for range 20 {
		answersFrom(t, caller.caller(""), "bad")
	}
	caller.configure(`node: "bad"`, `node: "[a"`)
	if out, err := caller.try("reload"); err == nil || !strings.Contains(err.Error(), "fleet.offers") {
		t.Errorf("a pattern that is none: %s, %v", out, err)
	}
}
