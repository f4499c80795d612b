package verify

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	// draBeta is what drivers announce for the version before v1. Its messages are those of v1; its Go package would bring the API machinery
	// of Kubernetes into every program that verifies.
	draBeta = "v1beta1.DRAPlugin"
	// draHealth is announced by drivers that also report the health of devices.
	draHealth = "v1alpha1.DRAResourceHealth"
)

func draServiceNames() []string { return []string{drav1.DRAPluginService, draBeta, draHealth} }

func draRules() []Rule {
	return []Rule{
		{
			ID: "DRA001", Title: "NodePrepareResources can be called in each announced version", Type: registerapi.DRAPlugin,
			Why:    "The kubelet calls the highest version that the driver announces; pods with claims do not start if it is not there.",
			Remedy: "register the gRPC service of each announced version on the endpoint, or announce fewer",
			check: func(ctx context.Context, s *subject) outcome {
				return s.eachDRAVersion(ctx, "NodePrepareResources", &drav1.NodePrepareResourcesRequest{}, &drav1.NodePrepareResourcesResponse{})
			},
		},
		{
			ID: "DRA002", Title: "NodeUnprepareResources can be called in each announced version", Type: registerapi.DRAPlugin,
			Why:    "Without it, pods with claims do not end.",
			Remedy: "implement NodeUnprepareResources in the gRPC service of each announced version",
			check: func(ctx context.Context, s *subject) outcome {
				return s.eachDRAVersion(ctx, "NodeUnprepareResources", &drav1.NodeUnprepareResourcesRequest{},
					&drav1.NodeUnprepareResourcesResponse{})
			},
		},
	}
}

// eachDRAVersion makes a call without claims in each announced version. An error of the driver itself is an answer too.
func (s *subject) eachDRAVersion(ctx context.Context, method string, request, answer proto.Message) outcome {
	return s.onEndpoint(ctx, func(info *registerapi.PluginInfo, conn *grpc.ClientConn) outcome {
		var called []string
		for _, version := range []string{drav1.DRAPluginService, draBeta} {
			if !slices.Contains(info.SupportedVersions, version) {
				continue
			}
			if err := conn.Invoke(ctx, "/k8s.io.kubelet.pkg.apis.dra."+version+"/"+method, request, answer); !answered(err) {
				return fail("%s of the announced %s %s", method, version, brief(err))
			}
			called = append(called, version)
		}
		if called == nil {
			return notApplicable("no version is announced that is known here")
		}
		return pass("answered in %s, without any claims", strings.Join(called, " and "))
	})
}
