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

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// Limits on the answers of a server. The answers of real servers are far smaller.
const (
	maxServices    = 1000
	maxFiles       = 1000 // including answers without files
	maxAnswerBytes = 16 << 20
	maxName        = 512
	maxReason      = 300
)

// errReflection is wrapped by errors for unusable answers to reflection.
var errReflection = errors.New("the plugin's reflection cannot be used")

// reflectionMethods are the versions of the reflection service, newest first. Only the package of their messages differs.
var reflectionMethods = []string{
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
}

// Load returns the services of the server behind conn, through reflection. If the selector (see [Schema.Method]) is not empty, only
// services that match it are described. If the server has no reflection, Load returns [Builtin] for the plugin p; a service that the server
// lists and does not describe is also taken from the built-in ones. Load blocks until the server has answered or ctx is done.
func Load(ctx context.Context, conn grpc.ClientConnInterface, selector string, p *patchbayv1.Plugin) (*Schema, error) {
	for _, method := range reflectionMethods {
		var s *Schema
		result := make(chan error, 1)
		// Package protodesc may take years for malicious descriptors. The goroutine then runs until the process exits.
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
	defer cancel() // ends the stream
	bounded := &reflectionConn{ClientConnInterface: conn, method: method}
	// The descriptor libraries may panic for descriptors that no compiler wrote.
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
	builtin := fallback{Builtin(nil)}
	client := grpcreflect.NewClientV1(ctx, reflectionv1.NewServerReflectionClient(bounded), grpcreflect.WithFallbackResolvers(builtin, nil))
	names, err := services(client)
	if err != nil {
		return nil, err
	}
	s = &Schema{Source: Reflected, files: &protoregistry.Files{}}
	service, _ := split(selector)
	for _, name := range names {
		if !matches(name, service) { // errors need only its name
			s.Undescribed = append(s.Undescribed, name)
			continue
		}
		file, err := client.FileContainingSymbol(name)
		if grpcreflect.IsElementNotFoundError(err) {
			s.Undescribed = append(s.Undescribed, name)
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

// fallback resolves files and services that the server does not describe.
type fallback struct{ builtin *Schema }

// FindFileByPath returns the file from this program, or an empty file. Imports that servers lack often have only options; if a missing type
// is used, the file that uses it is refused later.
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

// reflectionConn is a connection for one version of the reflection service. It limits the sum of all answers.
type reflectionConn struct {
	grpc.ClientConnInterface
	method       string
	files, bytes int
	err          error // of the first stream; there is no second one
}

func (c *reflectionConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, _ string, options ...grpc.CallOption,
) (stream grpc.ClientStream, err error) {
	if c.err == nil {
		stream, c.err = c.ClientConnInterface.NewStream(ctx, desc, c.method, options...)
	}
	if c.err != nil {
		return nil, errReflection // for a status, the client would try another version of the service
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
