package archtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// minDocLength is the length in bytes below which a package comment can hardly say both what a package is for and what it is not.
const minDocLength = 150

func TestPackagesAreDocumented(t *testing.T) {
	for _, p := range packages(t) {
		start := "Package " + p.name + " "
		if p.name == "main" {
			start = "" // The comment of a command begins with the command's name.
		}
		switch {
		case p.doc == "":
			t.Errorf("%s: package %s has no package comment", p.path, p.name)
		case !strings.HasPrefix(p.doc, start):
			t.Errorf("%s: the package comment does not begin with %q", p.path, start)
		case len(p.doc) < minDocLength:
			t.Errorf("%s: the package comment does not say what the package is for and what it is not: %q", p.path, p.doc)
		}
	}
}

func TestNoPackageForLeftovers(t *testing.T) {
	leftovers := []string{"util", "utils", "common", "helper", "helpers", "misc", "impl", "shared"}
	for _, p := range packages(t) {
		for element := range strings.SplitSeq(p.path, "/") {
			if slices.Contains(leftovers, element) {
				t.Errorf("%s: %q says nothing about what is in it, give the idea its own name", p.path, element)
			}
		}
	}
}

// TestNoHeavyDependency reads go.mod, which names every module that a package of this module or a test of one is built from.
func TestNoHeavyDependency(t *testing.T) {
	goMod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	heavy := []string{
		"k8s.io/api",
		"k8s.io/apimachinery",
		"k8s.io/client-go",
		"k8s.io/kubernetes",
		"github.com/hashicorp/nomad",
		"go.chromium.org/luci",
		"go.etcd.io/etcd/server/v3",
		"go.etcd.io/etcd/tests/v3",
	}
	for line := range strings.Lines(string(goMod)) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		for _, module := range heavy {
			if len(fields) > 0 && strings.HasPrefix(fields[0]+"/", module+"/") {
				t.Errorf("go.mod requires %s: move what needs it to a module of its own, which no user of the library downloads", fields[0])
			}
		}
	}
}

// TestGoPluginComesWithTheDaemonOnly keeps the one library that few hosts need away from those that import the runtime or the SDK. Hosts that
// have it already move with pluginclient, which nothing here imports.
func TestGoPluginComesWithTheDaemonOnly(t *testing.T) {
	const moved = "host/goplugin/pluginclient"
	for _, p := range packages(t) {
		if p.path != "host/goplugin" && p.path != moved {
			for imported := range p.foreign {
				if strings.HasPrefix(imported, "github.com/hashicorp/") {
					t.Errorf("%s imports %s: only host/goplugin may", p.path, imported)
				}
			}
		}
		if _, ok := p.imports["host/goplugin"]; ok && p.path != "internal/daemon" && p.path != moved {
			t.Errorf("%s imports host/goplugin: only internal/daemon may", p.path)
		}
		if _, ok := p.imports[moved]; ok {
			t.Errorf("%s imports %s: it is for the hosts of others", p.path, moved)
		}
	}
}
