package verify

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
)

const (
	// draBeta is what drivers announce for the version before v1. Its messages are those of v1; its Go package would bring the API machinery
	// of Kubernetes into every program that verifies.
	draBeta = "v1beta1.DRAPlugin"
	// draHealth is announced by drivers that also report the health of devices, and draHealthAlpha before Kubernetes 1.37. The messages are
	// the same.
	draHealth      = "v1.DRAResourceHealth"
	draHealthAlpha = "v1alpha1.DRAResourceHealth"
)

// draHealthService returns the newest announced service for health that is known here, which hosts call; empty without one.
func (s *subject) draHealthService() string {
	for _, version := range []string{draHealth, draHealthAlpha} {
		if slices.Contains(s.asked.info.GetSupportedVersions(), version) {
			return version
		}
	}
	return ""
}

func checkPrepare(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	return s.eachDRAVersion(ctx, conn, "NodePrepareResources", &drav1.NodePrepareResourcesRequest{}, &drav1.NodePrepareResourcesResponse{})
}

func checkUnprepare(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	return s.eachDRAVersion(ctx, conn, "NodeUnprepareResources", &drav1.NodeUnprepareResourcesRequest{},
		&drav1.NodeUnprepareResourcesResponse{})
}

// eachDRAVersion makes a call without claims in each announced version. An error of the driver itself is an answer too.
func (s *subject) eachDRAVersion(ctx context.Context, conn *grpc.ClientConn, method string, request, answer proto.Message) outcome {
	var called []string
	for _, version := range []string{drav1.DRAPluginService, draBeta} {
		if !slices.Contains(s.asked.info.SupportedVersions, version) {
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
}
