// Protogen generates the Go code of the protobuf files in this repository, with the generators that tools/go.mod pins.
//
// It takes the root of the repository as its argument and must run in the tools module. With -check it writes nothing and fails if
// the generated code is not current. It compiles the files itself, so that nothing but Go has to be installed.
//
// It is not a general replacement for protoc or buf: which file needs which generator is a table below.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// modulePath is cut from the Go import path of a generated file to get its path in the repository.
const modulePath = "github.com/patchbay-dev/patchbay"

// importRoots are the folders, relative to the repository, in which protobuf files and their imports are looked up.
var importRoots = []string{"api", "."}

// generator is a program that speaks the protoc plugin protocol, and the parameter it is given beside the module path.
type generator struct {
	tool      string
	parameter string
}

var (
	messages = generator{tool: "protoc-gen-go"}
	connect  = generator{tool: "protoc-gen-connect-go", parameter: ",simple"}
	grpc     = generator{tool: "protoc-gen-go-grpc"}
	// The documented ExampleServer interface of the example services has one method only.
	plainGRPC = generator{tool: "protoc-gen-go-grpc", parameter: ",require_unimplemented_servers=false"}
)

var targets = []struct {
	file       string
	generators []generator
}{
	{"patchbay/v1/control.proto", []generator{messages, connect}},
	{"patchbay/v1/fleet.proto", []generator{messages, connect}},
	{"patchbay/v1/devices.proto", []generator{messages, connect}},
	{"patchbay/fleet/v1/fleet.proto", []generator{messages}},
	{"patchbay/plugin/v1/plugin.proto", []generator{messages, grpc}},
	{"patchbay/cipd/v1/cipd.proto", []generator{messages}},
	{"pluginwatcher/example_plugin_apis/v1beta1/api.proto", []generator{messages, plainGRPC}},
	{"pluginwatcher/example_plugin_apis/v1beta2/api.proto", []generator{messages, plainGRPC}},
}

func main() {
	check := flag.Bool("check", false, "write nothing, fail if the generated code is not current")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: protogen [-check] REPOSITORY")
		os.Exit(2)
	}
	emit := write
	if *check {
		emit = compare
	}
	if err := run(context.Background(), flag.Arg(0), emit); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, repository string, emit func(path, content string) error) error {
	roots := make([]string, len(importRoots))
	for i, root := range importRoots {
		roots[i] = filepath.Join(repository, root)
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: roots}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	for _, target := range targets {
		files, err := compiler.Compile(ctx, target.file)
		if err != nil {
			return err
		}
		for _, g := range target.generators {
			generated, err := g.generate(ctx, files[0])
			if err != nil {
				return fmt.Errorf("%s for %s: %w", g.tool, target.file, err)
			}
			for _, f := range generated {
				if err := emit(filepath.Join(repository, filepath.FromSlash(f.GetName())), f.GetContent()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func write(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644)
}

func compare(path, content string) error {
	found, err := os.ReadFile(path)
	if err == nil && string(found) != content {
		err = fmt.Errorf("%s is not current: run make generate", path)
	}
	return err
}

// generate runs the generator on one file. The names of the files it returns are relative to the repository.
func (g generator) generate(ctx context.Context, file linker.File) ([]*pluginpb.CodeGeneratorResponse_File, error) {
	request, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{file.Path()},
		Parameter:      proto.String("module=" + modulePath + g.parameter),
		ProtoFile:      withImports(file, nil, map[string]bool{}),
	})
	if err != nil {
		return nil, err
	}
	tool := exec.CommandContext(ctx, "go", "tool", g.tool)
	tool.Stdin, tool.Stderr = bytes.NewReader(request), os.Stderr
	output, err := tool.Output()
	if err != nil {
		return nil, err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return nil, err
	}
	if response.Error != nil {
		return nil, fmt.Errorf("refused: %s", response.GetError())
	}
	return response.GetFile(), nil
}

// withImports appends the descriptor of the file after those of everything it imports, the order that generators expect.
func withImports(
	file protoreflect.FileDescriptor, list []*descriptorpb.FileDescriptorProto, seen map[string]bool,
) []*descriptorpb.FileDescriptorProto {
	if seen[file.Path()] {
		return list
	}
	seen[file.Path()] = true
	imports := file.Imports()
	for i := range imports.Len() {
		list = withImports(imports.Get(i).FileDescriptor, list, seen)
	}
	return append(list, protoutil.ProtoFromFileDescriptor(file))
}
