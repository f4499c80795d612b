package fleet_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/fleet"
)

// TestCallWithoutPresence: a node that lives is called although its presence has ended, as it has after etcd was away for long.
func TestCallWithoutPresence(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	a, caller := newCaller(t, patchbay, "a", etcd.client, ca, allowNodes, ""), newCaller(t, patchbay, "caller", etcd.client, ca, allowNodes, "")
	a.start()
	caller.start()
	a.echo(nil)
	caller.inFleet(1)
	answersFrom(t, caller.caller(""), "a")
	admin := etcd.admin()
	eventually(t, "the node is unreachable", func() bool {
		revokeLeaseOf(t, admin, "a", "presence") // each time: the node may be back before a command has looked
		output, err := caller.try("fleet", "nodes", "--state", "unreachable", "-o", "name")
		return err == nil && strings.TrimSpace(output) == "a"
	})
	if _, err := answers(t, caller.caller("")); err != nil {
		t.Errorf("the first call then: %v", err)
	}
}

// TestCrashed: a daemon that follows on one that crashed is published at once, however long the presence of that one lasts.
func TestCrashed(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	r := openReader(t, connect(t, etcd.client))
	config := fleet.PublisherConfig{Node: "a", Presence: 10 * time.Minute, Retention: time.Hour, InstanceFile: filepath.Join(t.TempDir(), "instance")}
	cut := newProxy(t, etcd.client)
	first := startNodeWith(t, connect(t, cut.url), config, newLocal("one"))
	first.published(t)
	cut.sever()
	first.stop() // and cannot say so
	second := startNodeWith(t, connect(t, etcd.client), config, newLocal("two"))
	shows(t, r, "a/two=registered")
	second.published(t)
	config.InstanceFile = ""
	stranger := startNodeWith(t, connect(t, etcd.client), config, newLocal("three"))
	eventually(t, "a condition that says so", func() bool {
		return strings.Contains(stranger.Condition().Message, "another daemon holds the name of the node")
	})
}
