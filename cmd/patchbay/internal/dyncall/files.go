package dyncall

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
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
	own, described := slices.Compact(slices.Sorted(slices.Values(f.Protos))), map[string]*descriptorpb.FileDescriptorProto{}
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
			if !slices.Contains(own, file.GetName()) {
				own, described[file.GetName()] = append(own, file.GetName()), file
			}
		}
	}
	find := func(path string) (protocompile.SearchResult, error) {
		source := protocompile.SourceResolver{ImportPaths: f.Imports}
		switch {
		case described[path] != nil:
			return protocompile.SearchResult{Proto: described[path]}, nil
		case filepath.IsAbs(path): // not searched for in Imports
			source.ImportPaths = nil
		}
		return source.FindFileByPath(path)
	}
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(protocompile.ResolverFunc(find))}
	compiled, err := compiler.Compile(ctx, own...)
	switch {
	case err != nil && len(f.Protos) == 0:
		return nil, fmt.Errorf("cannot use the descriptors: %w; protoc needs --include_imports to write what they import", err)
	case err != nil:
		return nil, fmt.Errorf("cannot compile the proto files: %w", err)
	}
	s := &Schema{Source: FromFiles, files: &protoregistry.Files{}}
	for _, file := range compiled {
		if err := register(s.files, file); err != nil {
			return nil, fmt.Errorf("cannot use the descriptors: %w", err)
		}
		for i := range file.Services().Len() {
			s.add(file.Services().Get(i))
		}
	}
	return s, nil
}

// register adds a file and its imports to files.
func register(files *protoregistry.Files, file protoreflect.FileDescriptor) error {
	if _, err := files.FindFileByPath(file.Path()); err == nil {
		return nil
	}
	for i := range file.Imports().Len() {
		if err := register(files, file.Imports().Get(i).FileDescriptor); err != nil {
			return err
		}
	}
	return files.RegisterFile(file)
}
