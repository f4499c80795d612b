package controlapi

import (
	"errors"
	"net/http"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// reflectionPath is the path of the reflection service.
const reflectionPath = "/grpc.reflection.v1.ServerReflection/"

// reflected serves reflection of the control API. Each caller sees only the methods that its role may call.
type reflected struct {
	reflectionv1.UnimplementedServerReflectionServer

	guard  *access.Authorizer
	byRole map[access.Role]reflectionv1.ServerReflectionServer
}

// reflectionHandler returns the handler of the reflection service. Requests for a plugin go to forwarder, unless it is nil. All bytes of
// other requests count, because gRPC reads requests before the service asks for them.
func (c service) reflectionHandler(forwarder http.Handler) http.Handler {
	r := reflected{guard: c.Authorizer, byRole: map[access.Role]reflectionv1.ServerReflectionServer{}}
	for _, of := range []access.Role{access.Read, access.Operate, access.Admin} {
		r.byRole[of] = reflection.NewServerV1(callable(of))
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest))
	reflectionv1.RegisterServerReflectionServer(server, r)
	own := c.boundRequests(c.lists.handler(server))
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		routed := slices.ContainsFunc([]string{proxy.TypeKey, proxy.NameKey, proxy.FleetKey, proxy.NodeKey, proxy.LabelKey},
			func(key string) bool { return len(request.Header.Values(key)) > 0 })
		if routed && forwarder != nil {
			forwarder.ServeHTTP(w, request)
			return
		}
		own.ServeHTTP(w, request)
	})
}

func (r reflected) ServerReflectionInfo(stream reflectionv1.ServerReflection_ServerReflectionInfoServer) error {
	asked := question{stream, r.guard, r.guard.Role(stream.Context())}
	if err := asked.admit(access.Read); err != nil {
		return err
	}
	if md, _ := grpcmetadata.FromIncomingContext(stream.Context()); len(md.Get(proxy.HopsKey)) > 0 {
		return status.Error(codes.PermissionDenied, access.ErrThroughPlugin.Error())
	}
	return r.byRole[asked.role].ServerReflectionInfo(asked)
}

// question is the stream of a caller with a role.
type question struct {
	reflectionv1.ServerReflection_ServerReflectionInfoServer

	guard *access.Authorizer
	role  access.Role
}

func (q question) admit(needed access.Role) error {
	return q.guard.Authorize(q.Context(), "ServerReflectionInfo", needed)
}

// Recv fails when the caller has lost its role.
func (q question) Recv() (*reflectionv1.ServerReflectionRequest, error) {
	request, err := q.ServerReflection_ServerReflectionInfoServer.Recv()
	if err != nil {
		return nil, err
	}
	return request, q.admit(q.role)
}

// Send counts an answer until the next one is sent or the stream ends.
func (q question) Send(answer *reflectionv1.ServerReflectionResponse) error {
	sent(q.Context())
	if err := countList(q.Context(), proto.Size(answer)); err != nil {
		return status.Error(codes.ResourceExhausted, errors.Unwrap(err).Error())
	}
	return q.ServerReflection_ServerReflectionInfoServer.Send(answer)
}

// services implements [reflection.ServiceInfoProvider]; only the names are used.
type services map[string]grpc.ServiceInfo

func (s services) GetServiceInfo() map[string]grpc.ServiceInfo { return s }

// callable returns the reflection options for the methods that a role may call. It panics on errors, because the descriptors are part of
// the program.
func callable(of access.Role) reflection.ServerOptions {
	files, named := new(protoregistry.Files), services{}
	add := func(file protoreflect.FileDescriptor, err error) {
		if err == nil {
			err = files.RegisterFile(file)
		}
		if err != nil {
			panic(err)
		}
		for i := range file.Services().Len() {
			named[string(file.Services().Get(i).FullName())] = grpc.ServiceInfo{}
		}
	}
	add(timestamppb.File_google_protobuf_timestamp_proto, nil)
	add(reflectionv1.File_grpc_reflection_v1_reflection_proto, nil)
	for _, file := range []protoreflect.FileDescriptor{
		patchbayv1.File_patchbay_v1_control_proto, patchbayv1.File_patchbay_v1_devices_proto, patchbayv1.File_patchbay_v1_fleet_proto,
	} {
		text := protodesc.ToFileDescriptorProto(file)
		for _, service := range text.GetService() {
			name := "/" + text.GetPackage() + "." + service.GetName() + "/"
			service.Method = slices.DeleteFunc(service.GetMethod(), func(m *descriptorpb.MethodDescriptorProto) bool {
				return access.RoleFor(name+m.GetName()) > of
			})
		}
		add(protodesc.NewFile(text, files))
	}
	return reflection.ServerOptions{Services: named, DescriptorResolver: files, ExtensionResolver: new(protoregistry.Types)}
}
