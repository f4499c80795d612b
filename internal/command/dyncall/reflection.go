package dyncall

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// What a server may say about itself. Real ones stay far below.
const (
	maxServices        = 1000
	maxFiles           = 1000
	maxDescriptorBytes = 16 << 20
	maxName            = 512
)

// errReflection is wrapped by the error of Load for a server whose answers to reflection cannot be used.
var errReflection = errors.New("the plugin's reflection cannot be used")

// reflectionMethods are the versions of the reflection service, newest first. Their messages differ in nothing but the package.
var reflectionMethods = []string{
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
}

// Load learns the services of the server behind conn. With a selector (see [Schema.Method]), only the methods of the services that it may
// mean are learnt; the empty one is all. A server without reflection has those of [Builtin] that fit the plugin; a service that a server
// has and does not describe is taken from there, too. Load blocks until the server has answered or ctx ends.
func Load(ctx context.Context, conn grpc.ClientConnInterface, selector string, p Plugin) (*Schema, error) {
	for _, method := range reflectionMethods {
		s, err := load(ctx, conn, method, selector)
		if err == nil || status.Code(err) != codes.Unimplemented {
			return s, err
		}
	}
	return Builtin(p), nil
}

func load(ctx context.Context, conn grpc.ClientConnInterface, method, selector string) (*Schema, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream, whatever the server does
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return nil, err
	}
	r := &conversation{stream: stream, files: files{byName: map[string]*descriptorpb.FileDescriptorProto{}}}
	names, err := r.services()
	if err != nil {
		return nil, err
	}
	s, builtin := &Schema{Source: Reflected}, Builtin(Plugin{})
	var wanted []protoreflect.FullName
	service, _ := split(selector)
	for _, name := range names {
		if !matches(name, service) { // a selector that fits none is for an error, which needs no more than the names
			s.undescribed = append(s.undescribed, name)
			continue
		}
		found, err := r.describe(name)
		if err != nil {
			return nil, err
		}
		switch known := builtin.exactly(name); {
		case found:
			wanted = append(wanted, name)
		case known != nil:
			s.add(known)
		default:
			s.undescribed = append(s.undescribed, name)
		}
	}
	if s.files, err = r.files.link(); err != nil {
		return nil, err
	}
	for _, name := range wanted {
		descriptor, err := s.files.FindDescriptorByName(name)
		service, ok := descriptor.(protoreflect.ServiceDescriptor)
		if err != nil || !ok {
			return nil, fmt.Errorf("%w: the file that should contain service %s does not", errReflection, name)
		}
		s.add(service)
	}
	return s, nil
}

// conversation asks a server, over one stream.
type conversation struct {
	stream grpc.ClientStream
	files  files
}

// services returns the names of the server's services, sorted.
func (r *conversation) services() ([]protoreflect.FullName, error) {
	answer, err := r.ask(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{ListServices: "*"},
	})
	if err != nil {
		return nil, err
	}
	listed := answer.GetListServicesResponse()
	if listed == nil {
		return nil, fmt.Errorf("%w: it answers a request for its services with %s", errReflection, sayError(answer))
	}
	if n := len(listed.GetService()); n > maxServices {
		return nil, fmt.Errorf("%w: it lists %d services, more than %d", errReflection, n, maxServices)
	}
	var names []protoreflect.FullName
	for _, service := range listed.GetService() {
		name := protoreflect.FullName(service.GetName())
		if len(name) > maxName || !name.IsValid() {
			return nil, fmt.Errorf("%w: it lists a service with the malformed name %.100q", errReflection, string(name))
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// describe fetches the file of a service and all that it imports. It returns false if the server has no description of the service.
func (r *conversation) describe(service protoreflect.FullName) (bool, error) {
	found, err := r.fetch(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: string(service)},
	})
	if err != nil || !found {
		return false, err
	}
	for f := &r.files; len(f.missing) > 0; {
		name := f.missing[0]
		f.missing = f.missing[1:]
		if _, asked := f.byName[name]; asked {
			continue
		}
		f.byName[name] = nil
		// What the server lacks is taken from this program, or may turn out not to be needed.
		if _, err := r.fetch(&reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_FileByFilename{FileByFilename: name},
		}); err != nil {
			return false, err
		}
	}
	return true, nil
}

// fetch adds the files of one answer. It returns false if the answer says that there is none.
func (r *conversation) fetch(request *reflectionv1.ServerReflectionRequest) (bool, error) {
	answer, err := r.ask(request)
	if err != nil {
		return false, err
	}
	files := answer.GetFileDescriptorResponse().GetFileDescriptorProto()
	for _, raw := range files {
		if err := r.files.add(raw); err != nil {
			return false, err
		}
	}
	return len(files) > 0, nil
}

// ask sends a question and returns the answer, which is as large as conn lets it be.
func (r *conversation) ask(request *reflectionv1.ServerReflectionRequest) (*reflectionv1.ServerReflectionResponse, error) {
	answer := &reflectionv1.ServerReflectionResponse{}
	// The error of a send is io.EOF, and that of the receive says why.
	_ = r.stream.SendMsg(request)
	if err := r.stream.RecvMsg(answer); err != nil {
		return nil, err
	}
	if len(answer.ProtoReflect().GetUnknown()) > maxDescriptorBytes || proto.Size(answer) > maxDescriptorBytes {
		return nil, fmt.Errorf("%w: an answer has more than %d bytes", errReflection, maxDescriptorBytes)
	}
	return answer, nil
}

func sayError(answer *reflectionv1.ServerReflectionResponse) string {
	if e := answer.GetErrorResponse(); e != nil {
		return fmt.Sprintf("%v: %.200q", codes.Code(uint32(e.GetErrorCode())), e.GetErrorMessage())
	}
	return "something else"
}

// files are descriptors as a server sent them, and which it was asked for.
type files struct {
	byName  map[string]*descriptorpb.FileDescriptorProto // nil for one that the server was only asked for
	missing []string                                     // imported and not there yet
	count   int
	bytes   int
}

// add takes a serialized descriptor; one of a name that is there already changes nothing.
func (f *files) add(raw []byte) error {
	f.count++
	f.bytes += len(raw)
	if f.count > maxFiles || f.bytes > maxDescriptorBytes {
		return fmt.Errorf("%w: it describes more than %d files or %d bytes", errReflection, maxFiles, maxDescriptorBytes)
	}
	p := &descriptorpb.FileDescriptorProto{}
	if err := proto.Unmarshal(raw, p); err != nil {
		return fmt.Errorf("%w: a file descriptor: %w", errReflection, err)
	}
	if f.byName[p.GetName()] != nil {
		return nil
	}
	f.byName[p.GetName()] = p
	for _, name := range p.GetDependency() {
		if _, asked := f.byName[name]; !asked {
			f.missing = append(f.missing, name)
		}
	}
	if len(f.missing) > maxFiles {
		return fmt.Errorf("%w: its files import more than %d others", errReflection, maxFiles)
	}
	return nil
}

// link makes descriptors of what was sent, after which everything in them is checked. An import that nobody has counts as an empty file: it
// is often one of options only, and else what uses it is an error.
func (f *files) link() (linked *protoregistry.Files, err error) {
	// The input is a stranger's, and the library is made for compilers' output: what it checks too late may not end this program.
	defer func() {
		if problem := recover(); problem != nil {
			linked, err = nil, fmt.Errorf("%w: its descriptors are malformed: %v", errReflection, problem)
		}
	}()
	set := &descriptorpb.FileDescriptorSet{}
	for _, have := range f.byName {
		if have != nil {
			set.File = append(set.File, have)
		}
	}
	for i := 0; i < len(set.File); i++ { // it grows
		for _, name := range set.File[i].GetDependency() {
			if f.byName[name] == nil {
				f.byName[name] = ownFile(name)
				set.File = append(set.File, f.byName[name])
			}
		}
	}
	linked, err = protodesc.NewFiles(set)
	if err != nil {
		return nil, fmt.Errorf("%w: its descriptors: %w", errReflection, err)
	}
	return linked, nil
}

// ownFile returns the file of that name which this program has, or else an empty one.
func ownFile(name string) *descriptorpb.FileDescriptorProto {
	known, err := protoregistry.GlobalFiles.FindFileByPath(name)
	if err != nil {
		return &descriptorpb.FileDescriptorProto{Name: &name}
	}
	return protodesc.ToFileDescriptorProto(known)
}
