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
)

// notOfPlugins is offered by the kubelet to device plugins, in the same file as what plugins offer.
const notOfPlugins protoreflect.FullName = "v1beta1.Registration"

// Plugin is what is known of a plugin whose services are asked for. The zero value stands for nothing.
type Plugin struct {
	Type      string   // or one of its roles
	Versions  []string // that it announced
	Elsewhere bool     // Elsewhere says that its registration service is not at the endpoint that is called.
}

// ofType are the built-in services that plugins of a type have, beside registration and health.
var ofType = map[string][]protoreflect.FullName{
	"CSIPlugin":      {"csi.v1.Identity", "csi.v1.Controller", "csi.v1.GroupController", "csi.v1.SnapshotMetadata", "csi.v1.Node"},
	"csi-node":       {"csi.v1.Identity", "csi.v1.Node"},
	"csi-controller": {"csi.v1.Identity", "csi.v1.Controller", "csi.v1.GroupController", "csi.v1.SnapshotMetadata"},
	"DevicePlugin":   {"v1beta1.DevicePlugin"},
	"DRAPlugin": {
		"k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin", "v1.DRAResourceHealth",
		"v1alpha1.DRAResourceHealth",
	},
}

// csiV1 is a version of CSI whose services are built in.
var csiV1 = regexp.MustCompile(`^v?1(\.|$)`)

// has reports whether a built-in service is one that a plugin may have. The versions that DRA drivers announce are the ends of the names of
// their services; an announcement of none of them says nothing. Those of CSI say the major version only: registrars announce 1.0.0 for all.
func (p Plugin) has(service protoreflect.FullName) bool {
	switch services, known := ofType[p.Type]; {
	case p.Type == "":
		return true
	case service == "grpc.health.v1.Health":
		return true
	case service == "pluginregistration.Registration":
		return !p.Elsewhere
	case !known || !slices.Contains(services, service):
		return false
	}
	if strings.HasPrefix(string(service), "csi.v1.") {
		return len(p.Versions) == 0 || slices.ContainsFunc(p.Versions, csiV1.MatchString)
	}
	announced := func(service protoreflect.FullName) bool {
		return slices.ContainsFunc(p.Versions, func(v string) bool { return v != "" && matches(service, v) })
	}
	return announced(service) || !slices.ContainsFunc(ofType[p.Type], announced)
}

// Builtin returns the services that this package knows without asking and that a plugin may have: of registration, CSI, device plugins, DRA
// and health.
func Builtin(p Plugin) *Schema {
	s := &Schema{versions: p.Versions}
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
			case service.FullName() == notOfPlugins:
			case p.has(service.FullName()):
				s.add(service)
			case slices.Contains(ofType[p.Type], service.FullName()):
				s.unannounced = append(s.unannounced, service.FullName())
			default:
				s.others = append(s.others, service)
			}
		}
	}
	return s
}

// draV1beta1 returns the file of DRA v1beta1. It is that of v1 but for its package and the newer field share_id. The Go package of v1beta1
// converts between the two, for which it needs a good part of Kubernetes, and is not imported therefore.
var draV1beta1 = sync.OnceValue(func() protoreflect.FileDescriptor {
	return renamed(drav1.File_staging_src_k8s_io_kubelet_pkg_apis_dra_v1_api_proto, "k8s.io.kubelet.pkg.apis.dra.v1",
		"k8s.io.kubelet.pkg.apis.dra.v1beta1", "k8s.io/kubelet/pkg/apis/dra/v1beta1/api.proto", func(m *descriptorpb.DescriptorProto) {
			if m.GetName() == "Device" {
				m.Field = slices.DeleteFunc(m.Field, func(f *descriptorpb.FieldDescriptorProto) bool { return f.GetName() == "share_id" })
				m.OneofDecl = nil // the one that stands for "optional"
			}
		})
})

// draHealthV1 returns the file of the health of devices as it is since Kubernetes 1.37: that of v1alpha1 but for its package.
var draHealthV1 = sync.OnceValue(func() protoreflect.FileDescriptor {
	return renamed(drahealthv1alpha1.File_staging_src_k8s_io_kubelet_pkg_apis_dra_health_v1alpha1_api_proto, "v1alpha1", "v1",
		"k8s.io/kubelet/pkg/apis/dra-health/v1/api.proto", func(*descriptorpb.DescriptorProto) {})
})

// renamed returns a file with another package and path, and its messages changed.
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
	made, newErr := protodesc.NewFile(other, protoregistry.GlobalFiles)
	if err := errors.Join(err, newErr); err != nil {
		panic(err) // a test makes it
	}
	return made
}
