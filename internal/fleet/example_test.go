package fleet_test

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/patchbay-dev/patchbay/internal/fleet"
)

// What etcd has of a node is below one range of keys, for which the role of its user needs the right to read and write.
func ExampleSpace_NodeRange() {
	space := fleet.Space{Namespace: "berlin"}
	if err := space.Validate(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(space.NodeRange("node-7"))
	// Output: /patchbay/berlin/v1/nodes/node-7/
}

// A program may know from elsewhere where plugins are; with etcd, Find is that of a Lookup.
func ExampleDialer_Dial() {
	var find fleet.Finder = func(context.Context, fleet.Filter) ([]fleet.Instance, error) {
		return []fleet.Instance{{Plugin: fleet.Plugin{Node: "node-1", Type: "CSIPlugin", Name: "disk"}, Address: "10.0.0.1:7443"}}, nil
	}
	dialer := fleet.NewDialer(fleet.DialerConfig{Find: find})
	defer dialer.Close()
	fmt.Println(dialer.Dial("CSIPlugin", "disk", fleet.Policy{}))
	fmt.Println(dialer.Dial("CSIPlugin", "disk", fleet.Policy{Node: "node-1"}))
	// Output:
	// plugin CSIPlugin/disk in the fleet
	// plugin CSIPlugin/disk on node node-1
}

// A program that is not a node lists the fleet and follows what changes. It needs etcd, so it is only compiled here; what it does is tested
// in integration/fleet.
func ExampleOpen() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cluster, err := fleet.Connect(fleet.Etcd{Endpoints: []string{"http://10.0.0.1:2379"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	reader := fleet.Open(cluster, fleet.ReaderConfig{})
	defer reader.Close()
	snapshot, changes, err := reader.Watch(ctx, fleet.Filter{Types: []string{"CSIPlugin"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range snapshot.Plugins {
		fmt.Println(p.Node, p.Name, p.State)
	}
	for c := range changes {
		if c.Plugin != nil {
			fmt.Println(c.Kind, c.Plugin.Node, c.Plugin.Name, c.Plugin.State)
		}
	}
}

// A program that is no node calls a plugin, on any node that has it.
func ExampleNewDialer() {
	ctx := context.Background()
	cluster, err := fleet.Connect(fleet.Etcd{Endpoints: []string{"http://10.0.0.1:2379"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	credentials, err := fleet.NewCredentials(fleet.TLS{CA: "ca.crt", Cert: "nomad.crt", Key: "nomad.key"})
	if err != nil {
		fmt.Println(err)
		return
	}
	reader := fleet.Open(cluster, fleet.ReaderConfig{})
	defer reader.Close()
	dialer := fleet.NewDialer(fleet.DialerConfig{Find: reader.Find, Credentials: credentials})
	defer dialer.Close()
	conn := dialer.Dial("Echo", "one", fleet.Policy{})
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	fmt.Println(answer, err)
}
