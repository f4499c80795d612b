package stablesocket

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

func TestStablePath(t *testing.T) {
	for _, test := range []struct{ dir, ptype, name, want string }{
		{"/d", "csi-node", "hostpath.csi.k8s.io", "/d/csi-node/hostpath.csi.k8s.io.sock"},
		{"/d", "DevicePlugin", "example.com/gpu", "/d/DevicePlugin/example.com~2Fgpu.sock"},
		{"/d", "T", "..", "/d/T/~2E..sock"},
		{"/d", "T", "../../etc/x", "/d/T/~2E.~2F..~2Fetc~2Fx.sock"},
		{"/d", "..", ".hidden", "/d/~2E./~2Ehidden.sock"},
		{"/d", "T", "a\x00b~ü", "/d/T/a~00b~7E~C3~BC.sock"},
		{"/d", "T", "A", "/d/T/A.sock"},
		{"/d", "T", "a", "/d/T/a.sock"},
		{"/d", "T", "a.sock", "/d/T/a.sock.sock"},
		{"/d", "T", repeated("n", 97), "/d/T/" + repeated("n", 97) + ".sock"},
		{"/d", "T", repeated("n", 98), "/d/T/" + repeated("n", 79) + "~~7zacd4fqmdfo3jh7.sock"},
	} {
		got := socketPath(test.dir, named(test.ptype, test.name))
		if got != test.want {
			t.Errorf("the socket of %q/%q is at\n%s, want\n%s", test.ptype, test.name, got, test.want)
		}
	}
}

func FuzzStablePath(f *testing.F) {
	f.Add("csi-node", "a", "csi-node", "A")
	f.Add("T", "a/b", "T", "a~2Fb")
	f.Add("T", repeated("n", 200), "T", repeated("n", 201))
	f.Add("T", repeated("/", 30), "T", fileName(repeated("/", 30), 80))
	f.Add(repeated("t", 90), ".", repeated("t", 91), "..")
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, type1, name1, type2, name2 string) {
		for _, dir := range []string{"/d", "/" + repeated("d", MaxDir-1)} {
			one, two := socketPath(dir, named(type1, name1)), socketPath(dir, named(type2, name2))
			if (one == two) != (type1 == type2 && name1 == name2) {
				t.Errorf("%q/%q is at %s, %q/%q at %s", type1, name1, one, type2, name2, two)
			}
			if len(one) > sock.MaxPath {
				t.Errorf("%s has %d bytes", one, len(one))
			}
			if type1 == "" || name1 == "" {
				return // none such is registered
			}
			if filepath.Dir(filepath.Dir(one)) != dir || filepath.Base(filepath.Dir(one))[0] == '.' || !isStableName(filepath.Base(one)) {
				t.Errorf("%s is not two levels below %s, or hidden", one, dir)
			}
		}
	})
}

func repeated(text string, n int) string { return strings.Repeat(text, n) }
