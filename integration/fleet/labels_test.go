package fleet_test

import (
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/client"
)

// TestCallLabels: a call goes to a node with the labels that it asks for, and the audit of that node says who made it.
func TestCallLabels(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	nodes := map[string]*daemon{}
	for _, name := range []string{"a", "b", "c"} {
		nodes[name] = newCaller(t, patchbay, name, etcd.client, ca, allowNodes, "  labels: {zone: "+name+", kind: \"\"}\n")
		nodes[name].start()
		nodes[name].echo(nil)
	}
	a := nodes["a"]
	daemon := client.New(filepath.Join(a.dir, "control.sock"))
	defer daemon.Close()
	a.inFleet(3)
	for _, zone := range []string{"a", "b", "c"} {
		for range 5 {
			conn, err := daemon.FleetConnByLabels("Echo", "one", map[string]string{"zone": zone, "kind": ""})
			if err != nil {
				t.Fatal(err)
			}
			answersFrom(t, grpc_testing.NewTestServiceClient(conn), zone)
			_ = conn.Close()
		}
	}
	conn, err := daemon.FleetConnByLabels("Echo", "one", map[string]string{"zone": "none"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = answers(t, grpc_testing.NewTestServiceClient(conn))
	if s := grpcstatus.Convert(err); s.Code() != codes.Unavailable || s.Message() !=
		"cannot call plugin Echo/one in the fleet with label zone=none: no node that can be called has it registered" {
		t.Errorf("no node with the label: %v", err)
	}
	if text := a.run("call", "--label", "zone=c", "Echo/one", "grpc.health.v1.Health/Check"); !strings.Contains(text, "SERVING") {
		t.Errorf("the command: %s", text)
	}
	eventually(t, "the audit of b says who called", func() bool {
		return strings.Contains(nodes["b"].run("events", "--tail", "100", "--kind", "audit", "--follow=false"),
			"a: CallPlugin Echo/one: grpc.testing.TestService/UnaryCall: ok")
	})
}
