package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// instead is the advice for a target that is an endpoint without a registration service.
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

// programs returns the paths and digests of the plugin's programs, as they are now. It leaves out files that it cannot read, such as the
// program of another user's process.
func (s *subject) programs(ctx context.Context) []Program {
	var programs []Program
	add := func(path, file string) {
		if digest, err := digestOf(file); err == nil {
			programs = append(programs, Program{Path: clip(path), SHA256: digest})
		}
	}
	if s.runner != nil {
		for _, path := range s.runner.Programs {
			add(path, path)
		}
		return programs
	}
	peer, err := sock.Probe(ctx, s.path)
	if err != nil || peer.PID == 0 {
		return nil
	}
	link := filepath.Join("/proc", fmt.Sprint(peer.PID), "exe") // opens the running file, even if its path was replaced
	if path, err := os.Readlink(link); err == nil {
		add(path, link)
	}
	return programs
}

func digestOf(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	digest := sha256.New()
	if _, err := io.Copy(digest, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}
