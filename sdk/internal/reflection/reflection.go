// Package reflection implements gRPC server reflection for plugins: grpc.reflection.v1 and v1alpha.
//
// It answers as google.golang.org/grpc/reflection does, but does not link descriptor.proto, whose initialization would take 0.5 ms of each
// start of a plugin.
package reflection

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Service is the name of the service in its present version.
var Service = reflectionv1.ServerReflection_ServiceDesc.ServiceName

// Register registers both versions on s. They list the services that s has at the time of a request, and describe all linked files.
func Register(s *grpc.Server) {
	own := server{services: s.GetServiceInfo}
	reflectionv1.RegisterServerReflectionServer(s, own)
	// The messages of the older version differ only in the names of their types, which are not sent.
	older := reflectionv1.ServerReflection_ServiceDesc
	older.ServiceName = reflectionv1alpha.ServerReflection_ServiceDesc.ServiceName
	older.Metadata = reflectionv1alpha.ServerReflection_ServiceDesc.Metadata
	s.RegisterService(&older, own)
}

type server struct {
	reflectionv1.UnimplementedServerReflectionServer

	services func() map[string]grpc.ServiceInfo
}

func (s server) ServerReflectionInfo(stream reflectionv1.ServerReflection_ServerReflectionInfoServer) error {
	sent := map[string]bool{} // files that the client has, by path
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		answer := &reflectionv1.ServerReflectionResponse{ValidHost: request.GetHost(), OriginalRequest: request}
		switch err := s.answer(answer, request, sent); {
		case status.Code(err) == codes.InvalidArgument:
			return err
		case err != nil:
			answer.MessageResponse = &reflectionv1.ServerReflectionResponse_ErrorResponse{ErrorResponse: &reflectionv1.ErrorResponse{
				ErrorCode: int32(codes.NotFound), ErrorMessage: err.Error(),
			}}
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

// answer answers a request. An error of code InvalidArgument ends the stream, others say what was not found.
func (s server) answer(
	answer *reflectionv1.ServerReflectionResponse, request *reflectionv1.ServerReflectionRequest, sent map[string]bool,
) error {
	var found protoreflect.Descriptor
	var err error
	switch r := request.GetMessageRequest().(type) {
	case *reflectionv1.ServerReflectionRequest_FileByFilename:
		found, err = protoregistry.GlobalFiles.FindFileByPath(r.FileByFilename)
	case *reflectionv1.ServerReflectionRequest_FileContainingSymbol:
		found, err = protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(r.FileContainingSymbol))
	case *reflectionv1.ServerReflectionRequest_FileContainingExtension:
		var extension protoreflect.ExtensionType
		extension, err = protoregistry.GlobalTypes.FindExtensionByNumber(
			protoreflect.FullName(r.FileContainingExtension.GetContainingType()),
			protoreflect.FieldNumber(r.FileContainingExtension.GetExtensionNumber()))
		if err == nil {
			found = extension.TypeDescriptor()
		}
	case *reflectionv1.ServerReflectionRequest_AllExtensionNumbersOfType:
		numbers, err := extensionsOf(protoreflect.FullName(r.AllExtensionNumbersOfType))
		answer.MessageResponse = &reflectionv1.ServerReflectionResponse_AllExtensionNumbersResponse{
			AllExtensionNumbersResponse: &reflectionv1.ExtensionNumberResponse{
				BaseTypeName: r.AllExtensionNumbersOfType, ExtensionNumber: numbers,
			},
		}
		return err
	case *reflectionv1.ServerReflectionRequest_ListServices:
		list := &reflectionv1.ListServiceResponse{}
		for _, name := range slices.Sorted(maps.Keys(s.services())) {
			list.Service = append(list.Service, &reflectionv1.ServiceResponse{Name: name})
		}
		answer.MessageResponse = &reflectionv1.ServerReflectionResponse_ListServicesResponse{ListServicesResponse: list}
		return nil
	default:
		return status.Errorf(codes.InvalidArgument, "a request of reflection that this version does not know: %T", r)
	}
	if err != nil {
		return err
	}
	answer.MessageResponse = &reflectionv1.ServerReflectionResponse_FileDescriptorResponse{
		FileDescriptorResponse: &reflectionv1.FileDescriptorResponse{FileDescriptorProto: files(found.ParentFile(), sent)},
	}
	return nil
}

// extensionsOf returns the numbers of the extensions of a message, in order.
func extensionsOf(name protoreflect.FullName) (numbers []int32, err error) {
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, err
	}
	if _, is := found.(protoreflect.MessageDescriptor); !is {
		return nil, fmt.Errorf("%s is not a message", name)
	}
	protoregistry.GlobalTypes.RangeExtensionsByMessage(name, func(extension protoreflect.ExtensionType) bool {
		numbers = append(numbers, int32(extension.TypeDescriptor().Number()))
		return true
	})
	slices.Sort(numbers)
	return numbers, nil
}

// files returns a file and its imports, except imports that were sent before.
func files(asked protoreflect.FileDescriptor, sent map[string]bool) (encoded [][]byte) {
	delete(sent, asked.Path())
	for queue := []protoreflect.FileDescriptor{asked}; len(queue) > 0; queue = queue[1:] {
		next := queue[0]
		if sent[next.Path()] || next.IsPlaceholder() {
			continue
		}
		sent[next.Path()] = true
		encoded = append(encoded, file(next, options()))
		for i := range next.Imports().Len() {
			queue = append(queue, next.Imports().Get(i).FileDescriptor)
		}
	}
	return encoded
}
