package dyncall

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jhump/protoreflect/v2/grpcreflect"
	"github.com/jhump/protoreflect/v2/protoresolve"
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

// Limits on the answers of a server. Real servers stay far below.
const (
	maxServices    = 1000
	maxFiles       = 1000 // including answers without files
	maxAnswerBytes = 16 << 20
	maxName        = 512
	maxReason      = 300
)

// errReflection is wrapped by the error of Load for a server whose answers to reflection cannot be used.
var errReflection = errors.New("the plugin's reflection cannot be used")

// reflectionMethods are the versions of the reflection service, newest first. Only the package of their messages differs.
var reflectionMethods = []string{
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
}

// Load returns the services of the server behind conn. With a selector (see [Schema.Method]), it loads the methods only of services that
// the selector may mean; the empty selector means all. A server without reflection gets the services of [Builtin] that fit the plugin, and
// a service that the server lists but does not describe is taken from there too. Load blocks until the server has answered or ctx ends.
func Load(ctx context.Context, conn grpc.ClientConnInterface, selector string, p Plugin) (*Schema, error) {
	for _, method := range reflectionMethods {
		var s *Schema
		result := make(chan error, 1)
		// Descriptors can be made such that package protodesc needs years for them. The goroutine then ends with the process.
		go func() {
			var err error
			s, err = load(ctx, conn, method, selector)
			result <- err
		}()
		select {
		case err := <-result:
			if status.Code(err) != codes.Unimplemented {
				return s, err
			}
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return Builtin(p), nil
}

func load(ctx context.Context, conn grpc.ClientConnInterface, method, selector string) (s *Schema, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream, whatever the server does
	bounded := &reflectionConn{ClientConnInterface: conn, method: method}
	// The descriptor libraries are made for the output of compilers and may panic on other input.
	defer func() {
		switch problem := recover(); {
		case bounded.err != nil:
			err = bounded.err
		case problem != nil:
			err = fmt.Errorf("%w: its descriptors are malformed: %v", errReflection, problem)
		}
		if err != nil {
			s = nil
		}
	}()
	builtin := fallback{Builtin(Plugin{})}
	client := grpcreflect.NewClientV1(ctx, reflectionv1.NewServerReflectionClient(bounded), grpcreflect.WithFallbackResolvers(builtin, nil))
	names, err := services(client)
	if err != nil {
		return nil, err
	}
	s = &Schema{Source: Reflected, files: &protoregistry.Files{}}
	service, _ := split(selector)
	for _, name := range names {
		if !matches(name, service) { // only its name is needed, for an error
			s.undescribed = append(s.undescribed, name)
			continue
		}
		file, err := client.FileContainingSymbol(name)
		if grpcreflect.IsElementNotFoundError(err) {
			s.undescribed = append(s.undescribed, name)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w: service %s: %.*v", errReflection, name, maxReason, err)
		}
		described, ok := protoresolve.FindDescriptorByNameInFile(file, name).(protoreflect.ServiceDescriptor)
		if !ok {
			return nil, fmt.Errorf("%w: it lists %s, which is not a service", errReflection, name)
		}
		s.add(described)
	}
	client.AsResolver().RangeFiles(func(file protoreflect.FileDescriptor) bool {
		err = s.files.RegisterFile(file)
		return err == nil
	})
	return s, err
}

// services returns the names of the server's services, sorted.
func services(client *grpcreflect.Client) ([]protoreflect.FullName, error) {
	names, err := client.ListServices()
	if err != nil {
		return nil, fmt.Errorf("%w: cannot list its services: %.*v", errReflection, maxReason, err)
	}
	if n := len(names); n > maxServices {
		return nil, fmt.Errorf("%w: it lists %d services, more than %d", errReflection, n, maxServices)
	}
	for _, name := range names {
		if len(name) > maxName || !name.IsValid() {
			return nil, fmt.Errorf("%w: it lists a service with the malformed name %.100q", errReflection, string(name))
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// fallback resolves what a server does not describe.
type fallback struct{ builtin *Schema }

// FindFileByPath returns the file of that name in this program, or else an empty one: an import that the server lacks often has only
// options, and otherwise the file that uses its types is an error.
func (fallback) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	if file, err := protoregistry.GlobalFiles.FindFileByPath(path); err == nil {
		return file, nil
	}
	return protodesc.NewFile(&descriptorpb.FileDescriptorProto{Name: &path}, nil)
}

func (f fallback) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if service := f.builtin.exactly(name); service != nil {
		return service, nil
	}
	return protoregistry.GlobalFiles.FindDescriptorByName(name)
}

// reflectionConn is a connection for one version of the reflection service. It limits the answers in total; the connection limits each.
type reflectionConn struct {
	grpc.ClientConnInterface
	method       string
	files, bytes int
	err          error // why the first stream ended, after which there is no other
}

func (c *reflectionConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, _ string, options ...grpc.CallOption,
) (stream grpc.ClientStream, err error) {
	if c.err == nil {
		stream, c.err = c.ClientConnInterface.NewStream(ctx, desc, c.method, options...)
	}
	if c.err != nil {
		return nil, errReflection // not the status, after which the client would try another version of the service
	}
	return &reflectionStream{stream, c}, nil
}

type reflectionStream struct {
	grpc.ClientStream
	conn *reflectionConn
}

func (s *reflectionStream) RecvMsg(m any) error {
	c := s.conn
	if c.err = s.ClientStream.RecvMsg(m); c.err != nil {
		return c.err
	}
	answer, _ := m.(*reflectionv1.ServerReflectionResponse)
	c.files += max(1, len(answer.GetFileDescriptorResponse().GetFileDescriptorProto()))
	c.bytes += proto.Size(answer)
	if c.files > maxFiles || c.bytes > maxAnswerBytes {
		c.err = fmt.Errorf("%w: it answers with more than %d files or %d bytes", errReflection, maxFiles, maxAnswerBytes)
	}
	return c.err
}
