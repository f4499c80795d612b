package proxy_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

func FuzzRoute(f *testing.F) {
	f.Add("csi-node", "hostpath.csi.k8s.io")
	f.Add("a/b", "../\x00 %\xff\n")
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, ptype, name string) {
		route := proxy.Route(ptype, name)
		for _, value := range route {
			if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
				t.Errorf("%q is not fit for metadata", value)
			}
		}
		gotType, gotName, err := proxy.ParseRoute(metadata.Pairs(route...))
		if ptype == "" || name == "" {
			if err == nil {
				t.Error("a route to nothing is accepted")
			}
			return
		}
		if err != nil || gotType != ptype || gotName != name {
			t.Errorf("got %q, %q, %v, want %q, %q", gotType, gotName, err, ptype, name)
		}
	})
}

func TestParseRouteRefuses(t *testing.T) {
	for name, md := range map[string]metadata.MD{
		"nothing":     {},
		"no name":     metadata.Pairs(proxy.TypeKey, "a"),
		"no type":     metadata.Pairs(proxy.NameKey, "a"),
		"two names":   metadata.Pairs(proxy.TypeKey, "a", proxy.NameKey, "b", proxy.NameKey, "c"),
		"not encoded": metadata.Pairs(proxy.TypeKey, "a", proxy.NameKey, "%zz"),
	} {
		if ptype, name2, err := proxy.ParseRoute(md); err == nil || !strings.Contains(err.Error(), "patchbay-") {
			t.Errorf("%s: got %q, %q, %v", name, ptype, name2, err)
		}
	}
}
