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

// Files are files with the services of a server, for servers without reflection.
type Files struct {
	// Protos are proto sources. Their relative paths and their imports are searched for in Imports (default: the working directory).
	Protos, Imports []string
	// Sets are files with a serialized google.protobuf.FileDescriptorSet, written by protoc --include_imports --descriptor_set_out.
	Sets []string
}

// Empty reports whether there are no files.
func (f Files) Empty() bool { return len(f.Protos)+len(f.Sets) == 0 }

// Load reads the files. The services of imported files are left out.
func (f Files) Load(ctx context.Context) (*Schema, error) {
	all := &descriptorpb.FileDescriptorSet{}
	var own []string // the files that are not only imported
	if len(f.Protos) > 0 {
		compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(protocompile.ResolverFunc(f.find))}
		files, err := compiler.Compile(ctx, f.Protos...)
		if err != nil {
			return nil, fmt.Errorf("cannot compile the proto files: %w", err)
		}
		for _, file := range files {
			own = append(own, file.Path())
			collect(all, file)
		}
	}
	for _, path := range f.Sets {
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

// find opens a source. A file with an absolute path is not searched for in Imports.
func (f Files) find(path string) (protocompile.SearchResult, error) {
	if filepath.IsAbs(path) {
		f.Imports = nil
	}
	return (&protocompile.SourceResolver{ImportPaths: f.Imports}).FindFileByPath(path)
}

func has(set *descriptorpb.FileDescriptorSet, name string) bool {
	return slices.ContainsFunc(set.GetFile(), func(file *descriptorpb.FileDescriptorProto) bool { return file.GetName() == name })
}

// collect adds file and its imports to set.
func collect(set *descriptorpb.FileDescriptorSet, file protoreflect.FileDescriptor) {
	if has(set, file.Path()) {
		return
	}
	set.File = append(set.File, protoutil.ProtoFromFileDescriptor(file))
	for i := range file.Imports().Len() {
		collect(set, file.Imports().Get(i).FileDescriptor)
	}
}
