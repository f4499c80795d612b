package dra

import (
	"fmt"
	"slices"
	"strings"

	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// What drivers announce as their versions are the names of their services.
const (
	serviceV1      = drav1.DRAPluginService
	serviceV1beta1 = "v1beta1.DRAPlugin"
)

// services are the supported services for claims, newest first.
var services = []string{serviceV1, serviceV1beta1}

// healthServices are the supported services for health, newest first. Their messages are the same but for the name of their package, so
// those of v1alpha1 do for both.
var healthServices = []string{"v1.DRAResourceHealth", drahealth.DRAResourceHealth_ServiceDesc.ServiceName}

// negotiateHealth returns the newest of the announced services for health that is supported; empty if there is none.
func negotiateHealth(announced []string) string {
	for _, service := range healthServices {
		if slices.Contains(announced, service) {
			return service
		}
	}
	return ""
}

// negotiate returns the newest of the announced services for claims that is supported: v1.DRAPlugin or v1beta1.DRAPlugin. Others are
// passed over. The error says what was announced, and what is supported.
func negotiate(announced []string) (string, error) {
	for _, service := range services {
		if slices.Contains(announced, service) {
			return service, nil
		}
	}
	if len(announced) == 0 {
		return "", fmt.Errorf("no gRPC services were announced; announce one of %s as version", strings.Join(services, ", "))
	}
	return "", fmt.Errorf("none of the announced gRPC services %s is supported; announce one of %s as version",
		untrusted.QuoteAll(announced), strings.Join(services, ", "))
}
