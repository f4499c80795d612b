package verify_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/verify"
)

type driver struct {
	registerapi.UnimplementedRegistrationServer
}

func (driver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: "my driver", SupportedVersions: []string{"1.9.0"}}, nil
}

// This driver serves already. If [Target.Command] starts the driver, the rules about its start, refusal and exit are checked, too.
func ExampleRun() {
	dir, err := os.MkdirTemp("", "x")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "driver.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, driver{})
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()

	report, err := verify.Run(context.Background(), verify.Target{Socket: socket}, verify.Options{Rules: []string{"REG005", "REG007"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, result := range report.Results {
		fmt.Println(result.Rule, result.Status, result.Reason)
	}
	fmt.Println("OK:", report.OK(false))

	server.Stop()
	<-served
	// Output:
	// REG005 passed type "CSIPlugin", name "my driver"
	// REG007 failed the name "my driver" has spaces
	// OK: false
}
