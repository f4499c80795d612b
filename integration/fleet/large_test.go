//go:build linux

package fleet_test

import (
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/integration/internal/programs"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
	pbproxy "github.com/patchbay-dev/patchbay/internal/proxy"
)

// TestLargeAnswers has 1,000 callers of one node ask a plugin of another one for 100 MiB each, and read at their own pace: neither daemon,
// which may have 256 MB each, grows, and others are called meanwhile.
func TestLargeAnswers(t *testing.T) {
	const callers, most = 1_000, 256 << 20
	if programs.Raced {
		t.Skip("the race detector takes several times the memory")
	}
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	const allow = `[{identity: "*", types: ["*"], names: ["*"], methods: ["*"]}]`
	a, b := newCaller(t, patchbay, "a", etcd.client, ca, allow, ""), newCaller(t, patchbay, "b", etcd.client, ca, allow, "")
	for _, d := range []*daemon{a, b} {
		d.start()
		rig.BoundMemory(t, d.cmd.Process.Pid, most)
	}
	l, err := net.Listen("unix", filepath.Join(b.dir, "plugins", "large.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(rig.AnswersLarge()...)
	registerapi.RegisterRegistrationServer(server, &fakePlugin{info: &registerapi.PluginInfo{
		Type: "Echo", Name: "large", SupportedVersions: []string{"1.0.0"},
	}})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	b.echo(nil)
	a.run("fleet", "wait", "Echo/large", "--count", "1")
	a.inFleet(1)
	other := a.caller("b")
	rig.CallLarge(t, filepath.Join(a.dir, "control.sock"), append(pbproxy.Route("Echo", "large"), pbproxy.NodeKey, "b"), callers, 50, func() {
		answersFrom(t, other, "b")
	})
	for _, d := range []*daemon{a, b} {
		peak := rig.Peak(t, d.cmd.Process.Pid)
		t.Logf("daemon %s: %d KiB", d.name, peak)
		if peak<<10 > most {
			t.Errorf("daemon %s has up to %d KiB", d.name, peak)
		}
	}
}
