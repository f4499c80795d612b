package dyncall

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	devicev1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// kubeletService is the service that the kubelet offers to device plugins. Its proto file also has the service of the plugins.
const kubeletService protoreflect.FullName = "v1beta1.Registration"

// servicesOf has the built-in services of plugins by their type or role, except registration and health, which any plugin may have.
var servicesOf = map[string][]protoreflect.FullName{
	"CSIPlugin":      {"csi.v1.Identity", "csi.v1.Controller", "csi.v1.GroupController", "csi.v1.SnapshotMetadata", "csi.v1.Node"},
	"csi-node":       {"csi.v1.Identity", "csi.v1.Node"},
	"csi-controller": {"csi.v1.Identity", "csi.v1.Controller", "csi.v1.GroupController", "csi.v1.SnapshotMetadata"},
	"DevicePlugin":   {"v1beta1.DevicePlugin"},
	"DRAPlugin": {
		"k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin", "v1.DRAResourceHealth",
		"v1alpha1.DRAResourceHealth",
	},
}

// csiV1 matches the versions of CSI whose services are built in.
var csiV1 = regexp.MustCompile(`^v?1(\.|$)`)

// mayHave reports whether the plugin may have a built-in service. DRA drivers announce the ends of the names of their services as versions;
// a driver that announces none of these names may have all services. CSI registrars announce 1.0.0 for every CSI version 1.
func mayHave(p *patchbayv1.Plugin, service protoreflect.FullName) bool {
	switch services, known := servicesOf[p.GetType()]; {
	case p.GetType() == "":
		return true
	case service == "grpc.health.v1.Health":
		return true
	case service == "pluginregistration.Registration":
		return p.Endpoint == p.SocketPath // otherwise registration is at the socket, and calls go to the endpoint
	case !known || !slices.Contains(services, service):
		return false
	}
	if strings.HasPrefix(string(service), "csi.v1.") {
		return len(p.Versions) == 0 || slices.ContainsFunc(p.Versions, csiV1.MatchString)
	}
	announced := func(service protoreflect.FullName) bool {
		return slices.ContainsFunc(p.Versions, func(v string) bool { return v != "" && matches(service, v) })
	}
	return announced(service) || !slices.ContainsFunc(servicesOf[p.Type], announced)
}

// Builtin returns the services of the kubelet's plugin protocols that the plugin may have: registration, CSI, device plugin, DRA and
// health. It reads the type or role, the versions, the endpoint and the socket of the plugin; nil is a plugin of which nothing is known.
func Builtin(p *patchbayv1.Plugin) *Schema {
	s := &Schema{versions: p.GetVersions()}
	for _, file := range []protoreflect.FileDescriptor{
		registerapi.File_staging_src_k8s_io_kubelet_pkg_apis_pluginregistration_v1_api_proto,
		csi.File_csi_proto,
		devicev1beta1.File_staging_src_k8s_io_kubelet_pkg_apis_deviceplugin_v1beta1_api_proto,
		drav1.File_staging_src_k8s_io_kubelet_pkg_apis_dra_v1_api_proto,
		draV1beta1(),
		draHealthV1(), drahealthv1alpha1.File_staging_src_k8s_io_kubelet_pkg_apis_dra_health_v1alpha1_api_proto,
		healthpb.File_grpc_health_v1_health_proto,
	} {
		for i := range file.Services().Len() {
			switch service := file.Services().Get(i); {
			case service.FullName() == kubeletService:
			case mayHave(p, service.FullName()):
				s.add(service)
			case slices.Contains(servicesOf[p.GetType()], service.FullName()):
				s.unannounced = append(s.unannounced, service.FullName())
			default:
				s.others = append(s.others, service)
			}
		}
	}
	return s
}

// draV1beta1 returns the file of DRA v1beta1. It differs from v1 in its package and in the newer field share_id. The Go package of v1beta1
// is not imported, because it depends on a large part of Kubernetes for conversions.
var draV1beta1 = sync.OnceValue(func() protoreflect.FileDescriptor {
	return renamed(drav1.File_staging_src_k8s_io_kubelet_pkg_apis_dra_v1_api_proto, "k8s.io.kubelet.pkg.apis.dra.v1",
		"k8s.io.kubelet.pkg.apis.dra.v1beta1", "k8s.io/kubelet/pkg/apis/dra/v1beta1/api.proto", func(m *descriptorpb.DescriptorProto) {
			if m.GetName() == "Device" {
				m.Field = slices.DeleteFunc(m.Field, func(f *descriptorpb.FieldDescriptorProto) bool { return f.GetName() == "share_id" })
				m.OneofDecl = nil // generated for the optional field
			}
		})
})

// draHealthV1 returns the file of device health as of Kubernetes 1.37. It differs from v1alpha1 only in its package.
var draHealthV1 = sync.OnceValue(func() protoreflect.FileDescriptor {
	return renamed(drahealthv1alpha1.File_staging_src_k8s_io_kubelet_pkg_apis_dra_health_v1alpha1_api_proto, "v1alpha1", "v1",
		"k8s.io/kubelet/pkg/apis/dra-health/v1/api.proto", func(*descriptorpb.DescriptorProto) {})
})

// renamed returns a copy of file with another package and path, after change was called for each message.
func renamed(
	file protoreflect.FileDescriptor, from, to, path string, change func(*descriptorpb.DescriptorProto),
) protoreflect.FileDescriptor {
	text := strings.ReplaceAll(prototext.Format(protodesc.ToFileDescriptorProto(file)), from, to)
	other := &descriptorpb.FileDescriptorProto{}
	err := prototext.Unmarshal([]byte(text), other)
	other.Name = proto.String(path)
	for _, m := range other.GetMessageType() {
		change(m)
	}
	copied, newErr := protodesc.NewFile(other, protoregistry.GlobalFiles)
	if err := errors.Join(err, newErr); err != nil {
		panic(err) // the files are constant, and a test calls this
	}
	return copied
}
