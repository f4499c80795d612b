package dyncall

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// files are descriptors as a server sent them, and which it was asked for.
type files struct {
	byName  map[string]*file
	missing []string // imported and not there yet
	count   int
	bytes   int
}

// file is one descriptor; it is nil in [file.proto] as long as the server has only been asked for it.
type file struct {
	proto *descriptorpb.FileDescriptorProto
}

// add takes a serialized descriptor; one of a name that is there already changes nothing.
func (f *files) add(raw []byte) error {
	f.count++
	f.bytes += len(raw)
	if f.count > maxFiles || f.bytes > maxDescriptorBytes {
		return fmt.Errorf("%w: it describes more than %d files or %d bytes", ErrReflection, maxFiles, maxDescriptorBytes)
	}
	p := &descriptorpb.FileDescriptorProto{}
	if err := proto.Unmarshal(raw, p); err != nil {
		return fmt.Errorf("%w: a file descriptor: %w", ErrReflection, err)
	}
	if known := f.byName[p.GetName()]; known != nil && known.proto != nil {
		return nil
	}
	f.byName[p.GetName()] = &file{p}
	for _, name := range p.GetDependency() {
		if f.byName[name] == nil {
			f.missing = append(f.missing, name)
		}
	}
	if len(f.missing) > maxFiles {
		return fmt.Errorf("%w: its files import more than %d others", ErrReflection, maxFiles)
	}
	return nil
}

// nextMissing returns an imported file that the server was not asked for yet, as if it has been now.
func (f *files) nextMissing() (string, bool) {
	for len(f.missing) > 0 {
		name := f.missing[0]
		f.missing = f.missing[1:]
		if f.byName[name] == nil {
			f.byName[name] = &file{}
			return name, true
		}
	}
	return "", false
}

// link makes descriptors of what was sent, after which everything in them is checked. An import that nobody has is left out: it is often
// one of options only, and else what uses it is an error.
func (f *files) link() (linked *protoregistry.Files, err error) {
	// The input is a stranger's, and the library is made for compilers' output: what it checks too late may not end this program.
	defer func() {
		if problem := recover(); problem != nil {
			linked, err = nil, fmt.Errorf("%w: its descriptors are malformed: %v", ErrReflection, problem)
		}
	}()
	set := &descriptorpb.FileDescriptorSet{}
	for _, have := range f.byName {
		if have.proto != nil {
			set.File = append(set.File, have.proto)
		}
	}
	for i := 0; i < len(set.File); i++ { // it grows
		set.File = append(set.File, f.ownImports(set.File[i])...)
	}
	linked, err = protodesc.NewFiles(set)
	if err != nil {
		return nil, fmt.Errorf("%w: its descriptors: %w", ErrReflection, err)
	}
	return linked, nil
}

// ownImports returns the imports that the server lacks and this program has, and removes those that neither has.
func (f *files) ownImports(p *descriptorpb.FileDescriptorProto) []*descriptorpb.FileDescriptorProto {
	var own []*descriptorpb.FileDescriptorProto
	var gone []string
	for _, name := range p.GetDependency() {
		if have := f.byName[name]; have != nil && have.proto != nil {
			continue
		}
		known, err := protoregistry.GlobalFiles.FindFileByPath(name)
		if err != nil {
			gone = append(gone, name)
			continue
		}
		f.byName[name] = &file{protodesc.ToFileDescriptorProto(known)}
		own = append(own, f.byName[name].proto)
	}
	if len(gone) > 0 {
		removeImports(p, gone)
	}
	return own
}

// removeImports takes imports out of a file. The others keep their order, and public ones stay public.
func removeImports(p *descriptorpb.FileDescriptorProto, gone []string) {
	place := map[int32]int32{} // of what stays, from before to after
	var stay []string
	for i, name := range p.GetDependency() {
		if !slices.Contains(gone, name) {
			place[int32(i)] = int32(len(stay))
			stay = append(stay, name)
		}
	}
	renumber := func(indexes []int32) []int32 {
		var kept []int32
		for _, i := range indexes {
			if at, ok := place[i]; ok {
				kept = append(kept, at)
			}
		}
		return kept
	}
	p.PublicDependency, p.WeakDependency = renumber(p.PublicDependency), renumber(p.WeakDependency)
	p.Dependency = stay
}

// isBuiltinType says whether a type is one of those that come with protobuf.
func isBuiltinType(name protoreflect.FullName) bool { return name.Parent() == "google.protobuf" }
