package scaffold

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// repository is where Patchbay's go.mod is.
const repository = "../../../.."

// TestFiles renders with a version, and looks at what depends on the options.
func TestFiles(t *testing.T) {
	for _, o := range Samples {
		o.Version = "v1.2.3"
		files, err := Render(o)
		if err != nil {
			t.Fatal(err)
		}
		binary := BinaryName(o.Name)
		for _, name := range []string{
			"go.mod", "main.go", "main_test.go", "service.go", "service_test.go", "Makefile", "README.md", ".gitignore", binary + ".service",
		} {
			if !slices.ContainsFunc(files, func(f File) bool { return f.Path == name }) {
				t.Errorf("%s: there is no %s", o.Type, name)
			}
		}
		for _, f := range files {
			if strings.Contains(string(f.data), "{{.") || strings.Contains(string(f.data), "<no value>") {
				t.Errorf("%s of %s is not filled in", f.Path, o.Type)
			}
			for i, line := range strings.Split(string(f.data), "\n") {
				if len(line) > 140 || strings.TrimRight(line, " \t") != line {
					t.Errorf("%s of %s, line %d: %q is long or ends with spaces", f.Path, o.Type, i+1, line)
				}
			}
		}
	}
	files, err := Render(Options{Type: "MyPlugin", Name: "hello", Version: "v1.2.3-rc.1"})
	if err != nil {
		t.Fatal(err)
	}
	want := "module example.com/hello\n\ngo 1.26.0\n\nrequire github.com/patchbay-dev/patchbay v1.2.3-rc.1\n"
	if diff := cmp.Diff(want, string(files[0].data)); diff != "" {
		t.Error(diff)
	}
}

func TestGoVersion(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(repository, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(mod), "\ngo "+goVersion+"\n") {
		t.Errorf("go.mod does not say go %s", goVersion)
	}
}

func TestBinaryName(t *testing.T) {
	for name, want := range map[string]string{
		"hello": "hello", "disk.example.com": "disk", "example.com/widget": "widget", "a/B_c.d": "b-c", "9": "9", "-_-": "plugin",
	} {
		if got := BinaryName(name); got != want {
			t.Errorf("%q becomes %q, want %q", name, got, want)
		}
	}
}

func TestRenderRefuses(t *testing.T) {
	valid := Options{Type: "MyPlugin", Name: "hello", Version: "v1.0.0"}
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no type":          {func(o *Options) { o.Type = "" }, `type ""`},
		"type of slashes":  {func(o *Options) { o.Type = "a/b" }, `type "a/b"`},
		"role":             {func(o *Options) { o.Type = "csi-node" }, "write CSIPlugin"},
		"case":             {func(o *Options) { o.Type = "dRaPlugin" }, "write DRAPlugin"},
		"no name":          {func(o *Options) { o.Name = "" }, `name ""`},
		"quote":            {func(o *Options) { o.Name = `a"b` }, `name "a\"b"`},
		"line":             {func(o *Options) { o.Name = "a\nb" }, "must have up to"},
		"shell":            {func(o *Options) { o.Name = "a$(b)" }, "must have up to"},
		"way up":           {func(o *Options) { o.Name = "a/../b" }, "must have up to"},
		"flag":             {func(o *Options) { o.Name = "-a" }, "must have up to"},
		"long":             {func(o *Options) { o.Name = strings.Repeat("a", 254) }, "must have up to"},
		"CSI with a slash": {func(o *Options) { o.Type, o.Name = "CSIPlugin", "a/b" }, "is not a valid name of a CSI driver"},
		"CSI, long":        {func(o *Options) { o.Type, o.Name = "CSIPlugin", strings.Repeat("a", 64) }, "63 are allowed"},
		"DRA in capitals":  {func(o *Options) { o.Type, o.Name = "DRAPlugin", "Gpu" }, "it must be a DNS subdomain"},
		"device, bare":     {func(o *Options) { o.Type, o.Name = "DevicePlugin", "widget" }, "has no domain; name it like example.com/gpu"},
		"device, two":      {func(o *Options) { o.Type, o.Name = "DevicePlugin", "a.b/c/d" }, "has a name behind the domain that is not"},
		"DRA, too long":    {func(o *Options) { o.Type, o.Name = "DRAPlugin", strings.Repeat("g", 64) }, "63 are allowed"},
		"device, reserved": {func(o *Options) { o.Type, o.Name = "DevicePlugin", "x.kubernetes.io/y" }, "has a domain of Kubernetes"},
		"device, quota":    {func(o *Options) { o.Type, o.Name = "DevicePlugin", "requests.a.b/y" }, "which is reserved"},
		"module":           {func(o *Options) { o.Module = "a b" }, `module "a b"`},
		"module up":        {func(o *Options) { o.Module = "../b" }, "is not the path of a Go module"},
		"module, ours":     {func(o *Options) { o.Module = module }, "is Patchbay's own"},
		"no version":       {func(o *Options) { o.Version = "devel" }, `no released version of github.com/patchbay-dev/patchbay is called "devel"`},
		"version, 2 lines": {func(o *Options) { o.Version = "v1.0.0\nx" }, "no released version"},
		"no source":        {func(o *Options) { o.Replace = "/nowhere" }, "no source to build with"},
		"other source":     {func(o *Options) { o.Replace = "../../../../tools" }, "is not the source of"},
	} {
		o := valid
		c.change(&o)
		if _, err := Render(o); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
	if _, err := Render(valid); err != nil {
		t.Error(err)
	}
}

func TestWriteOverwritesNothing(t *testing.T) {
	dir := t.TempDir()
	files := []File{{"a", []byte("new")}, {"b", []byte("new")}, {"c", []byte("new")}}
	if err := os.WriteFile(filepath.Join(dir, "b"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	err := Write(dir, files)
	if err == nil || !strings.Contains(err.Error(), ": b, c already exist; name another directory") {
		t.Fatalf("got %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("there are %v, %v", entries, err)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "b")); string(text) != "old" {
		t.Errorf("b is %q", text)
	}

	// What is in the way only when it is written leaves nothing behind either.
	fresh := filepath.Join(dir, "x", "y")
	if err := Write(fresh, []File{{"a", nil}, {"b/c", nil}}); err == nil {
		t.Error("a file in a directory that is not there is written")
	}
	if _, err := os.Stat(filepath.Dir(fresh)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("x is left: %v", err)
	}
	if err := Write(filepath.Join(dir, "b"), files); err == nil {
		t.Error("a file is taken for a directory")
	}
	if err := Write(fresh, files); err != nil {
		t.Error(err)
	}
}
