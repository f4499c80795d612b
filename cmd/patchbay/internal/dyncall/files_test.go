package dyncall

import (
	"os"
	"path/filepath"
	"testing"
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
	schema, err := Files{Protos: []string{path}, Imports: []string{imports}}.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s := schema.Services; len(s) != 1 || s[0].FullName() != "p.S" {
		t.Errorf("the services are %v, want p.S", s)
	}
}
