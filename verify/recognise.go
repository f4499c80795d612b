package verify

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// instead says what to verify instead of an endpoint.
const instead = "verify the registration socket, which is in the plugin directory; or the driver and its registrar as one plugin: " +
	"patchbay verify --driver 'DRIVER …{tmp}/driver.sock' -- REGISTRAR …{tmp}/driver.sock …{dir}; a device plugin that registers by itself " +
	"needs --kubelet-sock"

// recognise describes the service at a socket without a registration service; empty if it is unknown.
func (s *subject) recognise(ctx context.Context, path string) string {
	conn, err := dial(path, s.options.CallTimeout, nil)
	if err != nil {
		return ""
	}
	defer conn.Close()
	if info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}); err == nil {
		return "the CSI driver " + untrusted.Quote(clip(info.Name))
	}
	if _, err := deviceapi.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &deviceapi.Empty{}); err == nil {
		return "a device plugin"
	}
	if _, err := drav1.NewDRAPluginClient(conn).NodePrepareResources(ctx, &drav1.NodePrepareResourcesRequest{}); answered(err) {
		return "a DRA driver"
	}
	return ""
}
