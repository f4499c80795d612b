package device_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/handlers/device"
	"github.com/patchbay-dev/patchbay/handlers/handlertest"
)

// stateful is a handler with its state.
type stateful struct {
	*device.Handler
	state *boltstate.Store
}

func (s stateful) Close() error { return errors.Join(s.Handler.Close(), s.state.Close()) }

func TestHandlerConformance(t *testing.T) {
	handlertest.Suite{
		NewHandler: func(dir string) (cache.PluginHandler, error) {
			state, err := boltstate.Open(filepath.Join(dir, "state.db"))
			if err != nil {
				return nil, err
			}
			h := &device.Handler{
				Store: state.Bucket("device"), CallTimeout: 9 * time.Second, ListTimeout: 6 * time.Second,
			}
			if err := h.Open(); err != nil {
				return nil, errors.Join(err, state.Close())
			}
			return stateful{h, state}, nil
		},
		Versions:      []string{"v1beta1"},
		Serve:         func(s grpc.ServiceRegistrar, _ string) { newFake("a", "b").register(s) },
		Name:          func(i int) string { return fmt.Sprintf("example.com/gadget-%d", i) },
		WrongVersions: [][]string{nil, {"v1"}, {"v1alpha1", "v2"}},
		WrongNames:    []string{"", "gadget", "../gadget", "kubernetes.io/gadget", "example.com/a/b"},
		WrongPlugins: map[string]handlertest.Services{
			"no device plugin": func(s grpc.ServiceRegistrar, _ string) {
				pluginapi.RegisterDevicePluginServer(s, pluginapi.UnimplementedDevicePluginServer{})
			},
			"whose list is malformed": func(s grpc.ServiceRegistrar, _ string) { newFake("\x1b").register(s) },
			"that refuses to list": func(s grpc.ServiceRegistrar, _ string) {
				f := newFake()
				f.list = func(pluginapi.DevicePlugin_ListAndWatchServer) error { return status.Error(codes.Internal, "no") }
				f.register(s)
			},
		},
		HoldsConnection: true,
		Has: func(h cache.PluginHandler, name string) bool {
			s, ok := h.(stateful)
			return ok && slices.ContainsFunc(devicesOf(s.Handler), func(d device.Device) bool {
				return d.Resource == name && d.Health != device.Unavailable
			})
		},
	}.Test(t)
}
