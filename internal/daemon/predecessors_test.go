package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/patchbay-dev/patchbay/api/patchbay/cipd/v1"
	_ "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	_ "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	_ "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestReadsItsPredecessors reads what earlier versions wrote. Each folder of testdata/predecessors is one of them: its state file with three
// registered instances, its example configuration with every key, and its protobuf files. A release adds its own.
func TestReadsItsPredecessors(t *testing.T) {
	folders, err := filepath.Glob("testdata/predecessors/*")
	if err != nil || len(folders) == 0 {
		t.Fatalf("there are no predecessors (%v)", err)
	}
	for _, folder := range folders {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			t.Run("state", func(t *testing.T) { readState(t, folder) })
			t.Run("configuration", func(t *testing.T) { readConfiguration(t, folder) })
			t.Run("wire", func(t *testing.T) { compareWire(t, folder) })
		})
	}
	t.Run("handshake", func(t *testing.T) {
		line := `{"version":1,"hostSocket":"/run/h.sock","ticket":"1.5f","pluginSocket":"/run/p.sock"}` + "\n"
		got, err := handshake.Read(strings.NewReader(line))
		want := handshake.Handshake{Version: 1, HostSocket: "/run/h.sock", Ticket: "1.5f", PluginSocket: "/run/p.sock"}
		if err != nil || got != want {
			t.Errorf("read %+v, %v, want %+v", got, err, want)
		}
	})
}

// readState reads a state file, as the daemon does at its start.
func readState(t *testing.T, folder string) {
	content, err := os.ReadFile(filepath.Join(folder, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	state, err := boltstate.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	registry := dynamicplugins.NewRegistry(state, nil)
	defer registry.Shutdown()
	var got []string
	for _, in := range registry.(*dynamicplugins.Store).Instances("", "") {
		p := in.Info
		r := p.Instance
		if r == nil || p.Damage != nil || r.Peer == (plugin.Peer{}) || r.RegisteredAt.IsZero() {
			t.Errorf("the record of %s/%s at %s is incomplete: %+v", p.Type, p.Name, p.ConnectionInfo.SocketPath, r)
			continue
		}
		got = append(got, fmt.Sprint(p.Type, "/", p.Name, " ", filepath.Base(r.SocketPath), " ", r.Versions, " ", r.Source))
	}
	slices.Sort(got)
	want := []string{
		"CSIPlugin/csi.example.com csi.sock [v1beta1] discovered",
		"ExamplePlugin/hello h2.sock [v1beta1] discovered",
		"ExamplePlugin/hello hello.sock [v1beta1] discovered",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the instances (-want +got):\n%s", diff)
	}
}

// readConfiguration reads the example of a version, which has every key that it knew.
func readConfiguration(t *testing.T, folder string) {
	if _, err := config.Load(config.Sources{File: filepath.Join(folder, "patchbay.yaml")}); err != nil {
		t.Error(err)
	}
}

// compareWire sees that everything in the protobuf files of a version is still there: each field with its number and kind, each method with
// its messages.
func compareWire(t *testing.T, folder string) {
	files, err := filepath.Glob(filepath.Join(folder, "patchbay", "*", "*.proto"))
	deeper, deeperErr := filepath.Glob(filepath.Join(folder, "patchbay", "*", "*", "*.proto"))
	if err != nil || deeperErr != nil || len(files)+len(deeper) < 5 {
		t.Fatalf("protobuf files: %v, %v, %v, %v", files, deeper, err, deeperErr)
	}
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{folder}}),
	}
	for _, file := range append(files, deeper...) {
		name, err := filepath.Rel(folder, file)
		if err != nil {
			t.Fatal(err)
		}
		compiled, err := compiler.Compile(t.Context(), filepath.ToSlash(name))
		if err != nil {
			t.Fatal(err)
		}
		compareMessages(t, compiled[0].Messages())
		compareServices(t, compiled[0].Services())
	}
}

func find[T protoreflect.Descriptor](t *testing.T, name protoreflect.FullName) (found T) {
	t.Helper()
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		t.Errorf("%s is gone", name)
		return found
	}
	found, ok := d.(T)
	if !ok {
		t.Errorf("%s is now a %T", name, d)
	}
	return found
}

func compareMessages(t *testing.T, then protoreflect.MessageDescriptors) {
	t.Helper()
	for i := range then.Len() {
		message := then.Get(i)
		now := find[protoreflect.MessageDescriptor](t, message.FullName())
		if now == nil {
			continue
		}
		for j := range message.Fields().Len() {
			field := message.Fields().Get(j)
			same := now.Fields().ByNumber(field.Number())
			if same == nil || shape(same) != shape(field) {
				t.Errorf("field %s = %d was %q, and is no longer", field.FullName(), field.Number(), shape(field))
			}
		}
		compareMessages(t, message.Messages())
	}
}

// shape is what makes a field what it is, on the wire and in JSON.
func shape(f protoreflect.FieldDescriptor) string {
	kind := f.Kind().String()
	if m := f.Message(); m != nil {
		kind += " " + string(m.FullName())
	}
	if e := f.Enum(); e != nil {
		kind += " " + string(e.FullName())
	}
	return fmt.Sprint(f.Name(), " ", f.Cardinality(), " ", kind)
}

func compareServices(t *testing.T, then protoreflect.ServiceDescriptors) {
	t.Helper()
	for i := range then.Len() {
		methods := then.Get(i).Methods()
		for j := range methods.Len() {
			method := methods.Get(j)
			now := find[protoreflect.MethodDescriptor](t, method.FullName())
			if now == nil {
				continue
			}
			if call(now) != call(method) {
				t.Errorf("method %s was %s, and is %s", method.FullName(), call(method), call(now))
			}
		}
	}
}

func call(m protoreflect.MethodDescriptor) string {
	return fmt.Sprint(m.IsStreamingClient(), m.Input().FullName(), m.IsStreamingServer(), m.Output().FullName())
}
