package csi_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/csi"
	"github.com/patchbay-dev/patchbay/handlers/handlertest"
)

func TestConformance(t *testing.T) {
	serving := func(change func(*fake)) handlertest.Services {
		return func(s grpc.ServiceRegistrar, name string) {
			f := newFake()
			named(name)(f)
			change(f)
			f.register(s)
		}
	}
	handlertest.Suite{
		NewHandler: func(string) (cache.PluginHandler, error) {
			return csi.NewHandler(csi.Options{CallTimeout: 4 * time.Second, ReadyTimeout: time.Second}), nil
		},
		Versions:      []string{"1.0.0"},
		Serve:         serving(func(*fake) {}),
		WrongVersions: [][]string{nil, {"0.3.0"}, {"2.0.0"}, {"one"}, {"1"}},
		WrongNames:    []string{"", "../a", "a/b", "-a", strings.Repeat("a", 64)},
		WrongPlugins: map[string]handlertest.Services{
			"no CSI driver":           func(grpc.ServiceRegistrar, string) {},
			"another name":            serving(named("other.example.com")),
			"an unhealthy driver":     serving(probe(codes.Internal, "broken")),
			"a node without ID":       serving(node("", 0, nil)),
			"a node that says no":     serving(nodeError(codes.Internal)),
			"a driver that says soon": serving(nodeError(codes.Unavailable)),
		},
	}.Test(t)
}
