package fleet_test

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	grpcstatus "google.golang.org/grpc/status"
)

// TestStableSocket: a program that knows only a socket reaches a plugin wherever in the fleet it is, also after its node died.
func TestStableSocket(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	a := newCaller(t, patchbay, "a", etcd.client, ca, allowNodes, "  dispense: [Echo/one]\n")
	a.configure("handlers:", "dispenseDir: "+filepath.Join(a.dir, "stable")+"\nhandlers:")
	nodes := map[string]*daemon{"b": nil, "c": nil}
	a.start()
	socket := filepath.Join(a.dir, "stable", "Echo", "one.sock")
	// A connection that was refused is not tried again for a second.
	eventually(t, "the stable socket is there", func() bool { _, err := os.Lstat(socket); return err == nil })
	conn, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := grpc_testing.NewTestServiceClient(conn)
	if _, err := answers(t, c); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("nobody has it: %v", err)
	}
	for name := range nodes {
		nodes[name] = newCaller(t, patchbay, name, etcd.client, ca, allowNodes, "")
		nodes[name].start()
		nodes[name].echo(nil)
	}
	a.inFleet(2)
	first, err := answers(t, c)
	if err != nil {
		t.Fatal(err)
	}
	transparent(t, c)
	nodes[first].kill()
	answersFrom(t, c, map[string]string{"b": "c", "c": "b"}[first])
	a.echo(nil)
	answersFrom(t, c, "a")
}
