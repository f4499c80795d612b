package dyncall

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// TestAbsoluteProto: a proto file with an absolute path is not searched for in the directories of imports.
func TestAbsoluteProto(t *testing.T) {
	imports := t.TempDir()
	path := filepath.Join(t.TempDir(), "service.proto")
	for path, text := range map[string]string{
		path:                                    `syntax = "proto3"; package p; import "message.proto"; service S { rpc M(R) returns (R); }`,
		filepath.Join(imports, "message.proto"): `syntax = "proto3"; package p; message R {}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	schema, err := Files{Protos: []string{path, path}, Imports: []string{imports}}.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s := schema.Services; len(s) != 1 || s[0].FullName() != "p.S" {
		t.Errorf("the services are %v, want p.S", s)
	}
	if _, err := schema.Method("M"); err != nil {
		t.Error(err)
	}
}

// TestSets loads serialized descriptors, with all imports and without those that do not belong to protobuf itself.
func TestSets(t *testing.T) {
	write := func(files ...protoreflect.FileDescriptor) string {
		set := &descriptorpb.FileDescriptorSet{}
		for _, file := range files {
			set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
		}
		path := filepath.Join(t.TempDir(), "set")
		if err := os.WriteFile(path, mustMarshal(t, set), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	schema, err := Files{Sets: []string{write(csi.File_csi_proto), write(csi.File_csi_proto, healthpb.File_grpc_health_v1_health_proto)}}.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if text, err := schema.Describe("NodeGetInfo"); err != nil || !strings.Contains(text, "message NodeGetInfoResponse {") {
		t.Errorf("described as %q, %v", text, err)
	}
	if _, err := schema.Method("grpc.health.v1.Health/Check"); err != nil || len(schema.Services) != 6 {
		t.Errorf("%d services, %v", len(schema.Services), err)
	}
	_, err = Files{Sets: []string{write(patchbayv1.File_patchbay_v1_fleet_proto)}}.Load(t.Context())
	if err == nil || !strings.Contains(err.Error(), "control.proto") || !strings.Contains(err.Error(), "protoc needs --include_imports") {
		t.Errorf("without an import: %v", err)
	}
}
