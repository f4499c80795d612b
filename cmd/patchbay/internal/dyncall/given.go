package dyncall

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Given are files that say what services there are, for servers without reflection.
type Given struct {
	// Protos are proto sources. Relative paths, and what the sources import, are found in Imports (default: the working directory).
	Protos, Imports []string
	// Sets are files with a serialized google.protobuf.FileDescriptorSet, as protoc --include_imports --descriptor_set_out writes them.
	Sets []string
}

// Empty reports whether there are no files.
func (g Given) Empty() bool { return len(g.Protos)+len(g.Sets) == 0 }

// Load reads the files. The services are those of the files themselves, and not of what the sources import.
func (g Given) Load(ctx context.Context) (*Schema, error) {
	all := &descriptorpb.FileDescriptorSet{}
	var own []string // the files whose services are meant
	if len(g.Protos) > 0 {
		compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(protocompile.ResolverFunc(g.find))}
		files, err := compiler.Compile(ctx, g.Protos...)
		if err != nil {
			return nil, fmt.Errorf("cannot compile the proto files: %w", err)
		}
		for _, file := range files {
			own = append(own, file.Path())
			collect(all, file)
		}
	}
	for _, path := range g.Sets {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("cannot read the descriptors: %w", err)
		}
		set := &descriptorpb.FileDescriptorSet{}
		if err := proto.Unmarshal(raw, set); err != nil || len(set.GetFile()) == 0 {
			return nil, fmt.Errorf("%s is not a set of file descriptors: create it with protoc --include_imports --descriptor_set_out", path)
		}
		for _, file := range set.GetFile() {
			own = append(own, file.GetName())
			if !has(all, file.GetName()) {
				all.File = append(all.File, file)
			}
		}
	}
	files, err := protodesc.NewFiles(all)
	if err != nil {
		return nil, fmt.Errorf("cannot use the descriptors: %w; protoc needs --include_imports to write what they import", err)
	}
	s := &Schema{Source: FromFiles, files: files}
	for _, path := range own {
		file, err := files.FindFileByPath(path)
		if err != nil {
			return nil, fmt.Errorf("cannot use the descriptors: %w", err)
		}
		for i := range file.Services().Len() {
			if service := file.Services().Get(i); s.exactly(service.FullName()) == nil {
				s.add(service)
			}
		}
	}
	return s, nil
}

// find opens a source. One with an absolute path is not searched for.
func (g Given) find(path string) (protocompile.SearchResult, error) {
	if filepath.IsAbs(path) {
		g.Imports = nil
	}
	return (&protocompile.SourceResolver{ImportPaths: g.Imports}).FindFileByPath(path)
}

func has(set *descriptorpb.FileDescriptorSet, name string) bool {
	return slices.ContainsFunc(set.GetFile(), func(f *descriptorpb.FileDescriptorProto) bool { return f.GetName() == name })
}

func collect(set *descriptorpb.FileDescriptorSet, file protoreflect.FileDescriptor) {
	if has(set, file.Path()) {
		return
	}
	set.File = append(set.File, protoutil.ProtoFromFileDescriptor(file))
	for i := range file.Imports().Len() {
		collect(set, file.Imports().Get(i).FileDescriptor)
	}
}
