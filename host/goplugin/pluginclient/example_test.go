package pluginclient_test

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/hashicorp/go-hclog"
	library "github.com/hashicorp/go-plugin"

	"github.com/patchbay-dev/patchbay/host/goplugin/pluginclient"
)

// A host that was written for the library moves by the construction of its client. The plugin is this test, executed again.
func ExampleNewClient() {
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{modeEnv + "=serve"}
	client := pluginclient.NewClient(&library.ClientConfig{ // was: plugin.NewClient
		HandshakeConfig:  handshake,
		Plugins:          library.PluginSet{"talker": &talkerPlugin{}},
		Cmd:              cmd,
		AllowedProtocols: []library.Protocol{library.ProtocolGRPC},
		Managed:          true,
		Logger:           hclog.NewNullLogger(),
	})
	defer client.Kill()
	protocol, err := client.Client()
	if err != nil {
		panic(err)
	}
	raw, err := protocol.Dispense("talker")
	if err != nil {
		panic(err)
	}
	fmt.Println(raw.(*talker).beCalled())
	fmt.Println(client.NegotiatedVersion(), client.Exited(), client.ReattachConfig().Protocol)
	pluginclient.CleanupClients() // all that are Managed
	// Output:
	// hello plugin <nil>
	// 3 false grpc
}
