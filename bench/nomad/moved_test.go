package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/client/pluginmanager/csimanager"
	"github.com/hashicorp/nomad/client/state"

	"github.com/patchbay-dev/patchbay/bench/internal/theirs"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

const (
	nomad       = "github.com/hashicorp/nomad"
	theirImport = `"github.com/hashicorp/nomad/client/dynamicplugins"`
	ourImport   = `"github.com/patchbay-dev/patchbay/dynamicplugins"`
	page        = "../../docs/how-to/coming-from-nomad.md"
)

// specification matches the replacement of the CSI specification in go.mod.
var specification = regexp.MustCompile(`github.com/container-storage-interface/spec => .*`)

//go:embed testdata/boltstatedb_test.go
var boltStateDB string

// TestMoved runs tests of Nomad against package dynamicplugins. Only imports are changed, and how long
// something may take, for slow machines.
func TestMoved(t *testing.T) {
	for name, suite := range map[string]theirs.Suite{
		"dynamicplugins": {
			Module: nomad, From: "client/dynamicplugins", Files: []string{"*_test.go"},
			Edits: []string{"package dynamicplugins", "package dynamicplugins_test", "import (", "import (\n\t. " + ourImport, "1*time.Second", "time.Minute"},
			LeftOut: map[string]theirs.Reason{
				"TestPluginEventBroadcaster_SendsMessagesToAllClients": theirs.Unexported,
				"TestPluginEventBroadcaster_UnsubscribeWorks":          theirs.Unexported,
			},
		},
		"csimanager": {
			Module: nomad, From: "client/pluginmanager/csimanager", Files: []string{"*.go"},
			Edits: []string{theirImport, ourImport, "(context.Background(), 500*time.Millisecond)", "(context.Background(), time.Minute)"},
		},
		// Without upgrade_int_test.go, which needs most of Nomad, and upgrade_test.go, which does not use dynamicplugins.
		"state": {
			Module: nomad, From: "client/state", Files: []string{"*types.go", "db_*.go", "interface.go", "upgrade.go"},
			Edits: []string{theirImport, ourImport},
			Also:  map[string]string{"boltstatedb_test.go": boltStateDB},
		},
	} {
		t.Run(name, suite.Run)
	}
}

// differences are the outcomes of the program differences, with Nomad's registry and with that of this repository.
var differences = map[string][2]string{
	"`DeregisterPlugin` of an instance that is gone": {
		"nil", `no plugin for that allocation: plugin n for type T has no instance "1"`,
	},
	"`DeregisterPlugin` with an unknown `AllocID`": {
		"nil; event: deregistered 1", `no plugin for that allocation: plugin n for type T has no instance "2"; event: registered 3`,
	},
	"`DeregisterPlugin` with an empty `AllocID`":               {"must specify plugin allocation ID to deregister", "nil"},
	"`StubDispenserForType` of a type without a dispenser":     {"no plugin dispenser found for type: T", "nil"},
	"`RegisterPlugin` of a known `AllocID` with other details": {`nil; version ""`, `nil; version "2"`},
	"a `PluginInfo` is changed after `RegisterPlugin`":         {`nil; version "2"`, `nil; version ""`},
	"`RegisterPlugin(nil)`":                                    {"panic", "plugin info must not be nil"},
	"`PluginsUpdatedCh` of the empty type":                     {"0 events", "1 events"},
	"`WaitForPlugin` of an empty type or name":                 {"context canceled", "must specify plugin name to wait for"},
	"a dispenser calls the registry":                           {"deadlock", "returns"},
	"a dispenser is nil":                                       {"nil", "the plugin dispenser for type T is nil"},
	"`DispensePlugin` when the last plugin of the type is gone": {
		"plugin n for type T not found", "no plugins registered for type: T",
	},
	"`PluginForAlloc` of an instance that is gone": {
		"no plugin for that allocation; no plugin for that allocation; no plugin for that allocation",
		"no plugins registered for type: T; plugin n for type T not found; " +
			`no plugin for that allocation: plugin n for type T has no instance "1"`,
	},
	"the type of a dispenser is empty, has a slash or cannot be printed": {
		"nil; nil; nil", noType(``) + "; " + noType(`a/b`) + "; " + noType(`a\n`),
	},
	"the map of dispensers is changed after `NewRegistry`": {"nil", "no plugin dispenser found for type: T"},
	"the storage cannot load the state":                    {"nil", "cannot load the plugin registry's state: unreadable"},
	"the storage cannot save a change":                     {"disk full; 1 plugins", "cannot save plugin n for type T: disk full; 0 plugins"},
	"the state that a storage gets":                        {"2 instances", "1 instances"},
	"`Shutdown` is called twice":                           {"panic", "nil"},
}

// noType returns the error for a dispenser of something that is not the type of a plugin.
func noType(of string) string {
	return `a plugin dispenser is for "` + of + `", which is not a plugin type: it must have printable characters, at least one, and no slash`
}

// TestDifferences checks that each difference between the registries has a row on the page, and is one.
func TestDifferences(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, after := outcomes(t, false), outcomes(t, true)
	if len(before) != len(differences) {
		t.Errorf("the program has %d cases, and this test %d", len(before), len(differences))
	}
	for _, row := range []string{ // their tests are TestOtherTypes, TestMoved/state and TestMoved/csimanager
		"Nomad's `BoltStateDB` as the storage", "Nomad's packages that take a registry, such as `csimanager`",
	} {
		if !strings.Contains(string(text), "\n| "+row+" | ") {
			t.Errorf("%s has no row %q", page, row)
		}
	}
	for row, want := range differences {
		if got := [2]string{before[row], after[row]}; got != want {
			t.Errorf("%s: Nomad's registry and ours give %q, want %q", row, got, want)
		}
		if !strings.Contains(string(text), "\n| "+row+" | ") {
			t.Errorf("%s has no row %q", page, row)
		}
	}
}

// TestOtherTypes checks that a storage of Nomad is not one for our registry, and our registry not one for a package of Nomad: a host that
// passes them does not compile.
func TestOtherTypes(t *testing.T) {
	for what, got := range map[string]bool{
		"BoltStateDB":     reflect.TypeFor[*state.BoltStateDB]().AssignableTo(reflect.TypeFor[dynamicplugins.StateStorage]()),
		"DynamicRegistry": reflect.TypeFor[*dynamicplugins.Store]().AssignableTo(reflect.ValueOf(csimanager.Config{}).FieldByName("DynamicRegistry").Type()),
	} {
		if got {
			t.Errorf("%s can be used unchanged, and %s denies it", what, page)
		}
	}
}

// TestSpecification checks that Nomad compiles only with the version of the CSI specification that the page names, and that the packages that
// a host imports compile with it too.
func TestSpecification(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	sum, unread := os.ReadFile("go.sum")
	text, missing := os.ReadFile(page)
	dir := t.TempDir()
	pin := specification.Find(mod)
	if err := errors.Join(err, unread, missing,
		os.WriteFile(filepath.Join(dir, "go.mod"), bytes.Replace(mod, pin, nil, 1), 0o600),
		os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o600)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, append([]byte("\nreplace "), pin...)) {
		t.Errorf("%s does not have: replace %s", page, pin)
	}
	build := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"build"}, args...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	const ours = "github.com/patchbay-dev/patchbay"
	if out, err := build(nomad+"/plugins/csi", ours, ours+"/dynamicplugins/boltstate", ours+"/handlers/csi"); err != nil {
		t.Errorf("with the pinned version: %v\n%s", err, out)
	}
	out, err := build("-mod=mod", "-modfile", filepath.Join(dir, "go.mod"), nomad+"/plugins/csi")
	if err == nil || !strings.Contains(out, "undefined: csi") {
		t.Errorf("Nomad compiles with the version that is required, so nothing has to be pinned: %v\n%s", err, out)
	}
}

// outcomes runs the program differences, with the registry of Nomad or, if it is moved, of this repository.
func outcomes(t *testing.T, moved bool) map[string]string {
	t.Helper()
	const source = "differences/main.go"
	text, err := os.ReadFile(source)
	args := []string{"run", "./differences"}
	if moved {
		dir := t.TempDir()
		copied, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
		instead, failed := filepath.Abs(source)
		replace, unwritten := json.Marshal(map[string]any{"Replace": map[string]string{instead: copied}})
		err = errors.Join(err, failed, unwritten, os.WriteFile(overlay, replace, 0o600),
			os.WriteFile(copied, []byte(strings.Replace(string(text), theirImport, ourImport, 1)), 0o600))
		args = []string{"run", "-overlay", overlay, "./differences"}
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, failed := cmd.Output()
	if err := errors.Join(err, failed); err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	results := map[string]string{}
	for line := range strings.Lines(string(out)) {
		row, outcome, _ := strings.Cut(strings.TrimSpace(line), "\t")
		results[row] = outcome
	}
	return results
}
