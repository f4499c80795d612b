//go:build linux

// Hostdir is a CSI driver whose volumes are plain directories of one node. It provides, lists and deletes volumes and makes them available
// at the paths that a host asks for, by bind mount or, where it may not mount, by symbolic link.
//
//	go run ./hostdir --socket /run/patchbay/plugins/hostdir.sock --root /var/lib/hostdir
//
// It is an example of a complete driver: everything is on disk before it is answered, a crash at any moment leaves nothing half made, and
// two instances may share a root while one takes over from the other. It is no storage system: a directory has no quota, so the size of a
// volume is only counted.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/sdk"
)

const (
	// version is that of the driver, specVersion that of CSI which it implements.
	version     = "1.0.0"
	specVersion = "1.13.0"
)

type options struct {
	socket, root, name, nodeID, attach string
	capacity                           int64
}

func main() {
	var o options
	host, _ := os.Hostname() // without one, --node-id has to be given
	flag.StringVar(&o.socket, "socket", "", "where to serve, unless a host launched the driver or systemd passed a socket")
	flag.StringVar(&o.root, "root", "/var/lib/hostdir", "directory of the volumes")
	flag.StringVar(&o.name, "name", "hostdir.example.com", "name of the driver")
	flag.StringVar(&o.nodeID, "node-id", host, "name of this node")
	flag.StringVar(&o.attach, "attach", attachAuto, "how volumes appear at a path: mount, link, or auto for mount where that is allowed")
	flag.Int64Var(&o.capacity, "capacity", 0, "bytes that all volumes together may have (0: the size of the file system)")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "hostdir: takes no arguments, only flags; see --help")
		os.Exit(2)
	}
	if err := run(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, "hostdir:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.nodeID == "" || len(o.nodeID) > maxNodeID {
		return fmt.Errorf("the node's name %q is empty or longer than %d bytes; give one with --node-id", o.nodeID, maxNodeID)
	}
	volumes, err := openStore(o.root, o.capacity)
	if err != nil {
		return err
	}
	defer volumes.Close()
	attach, err := newAttacher(o.attach, volumes)
	if err != nil {
		return err
	}
	topology := &csi.Topology{Segments: map[string]string{o.name + "/node": o.nodeID}}
	return sdk.Serve(ctx, sdk.Plugin{
		Type: "CSIPlugin", Name: o.name, Versions: []string{specVersion},
		Socket: o.socket, TakeOver: true,
		Register: func(s grpc.ServiceRegistrar) {
			csi.RegisterIdentityServer(s, &identity{name: o.name})
			csi.RegisterControllerServer(s, &controller{volumes: volumes, topology: topology})
			csi.RegisterNodeServer(s, &node{volumes: volumes, attach: attach, id: o.nodeID, topology: topology})
		},
	})
}
