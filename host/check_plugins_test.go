//go:build unix

package host

import (
	"fmt"
	"net"
	"os"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
)

func registerCheckPlugins() {
	modes["other user"] = func([]string) { // serves, calls its host, and says as whom
		h, c := connect()
		l, err := net.Listen("unix", h.PluginSocket)
		if err != nil {
			fatal(err)
		}
		_, err = pluginv1.NewHostClient(c).ListMetadata(as(h.Ticket), &pluginv1.ListMetadataRequest{
			Pin: &pluginv1.Pin{PackageName: "p", InstanceId: "i"},
		})
		if err != nil {
			fatal(err)
		}
		groups, _ := os.Getgroups()
		fmt.Println(os.Getuid(), os.Getgid(), groups)
		stop()
		_ = l
	}
}
