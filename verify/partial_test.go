//go:build linux

package verify

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

func resultOf(t *testing.T, r Report, rule string) Result {
	t.Helper()
	i := slices.IndexFunc(r.Results, func(result Result) bool { return result.Rule == rule })
	if i < 0 {
		t.Fatalf("no result of %s:\n%s", rule, describe(r))
	}
	if blamesMachine(r.Results[i]) {
		t.Skipf("the machine is too busy to tell: %s", r.Results[i].Reason)
	}
	return r.Results[i]
}

// TestPartOfCSI: the rules for nodes do not apply to a driver that is only a controller, but they do to a driver with a node.
func TestPartOfCSI(t *testing.T) {
	const noNode = "NodeGetInfo NodeGetCapabilities"
	for name, tc := range map[string]struct {
		broken              string
		nodeOnly            bool
		capabilities, about Status
	}{
		"a controller alone": {noNode, false, NotApplicable, NotApplicable},
		"nothing":            {noNode, true, Failed, Failed},
		"no NodeGetInfo":     {"NodeGetInfo", false, Passed, Failed},
		"no capabilities":    {"NodeGetCapabilities", false, Failed, Passed},
	} {
		f := newFake(registerapi.CSIPlugin)
		f.broken, f.nodeOnly = tc.broken, tc.nodeOnly
		report := verifyFake(t, f, Options{Rules: []string{"CSI"}})
		if got := resultOf(t, report, "CSI004").Status; got != tc.capabilities {
			t.Errorf("%s: CSI004 %s, want %s", name, got, tc.capabilities)
		}
		if got := resultOf(t, report, "CSI005").Status; got != tc.about {
			t.Errorf("%s: CSI005 %s, want %s", name, got, tc.about)
		}
	}
}

// TestReadyLate: a driver that serves may report for a while that it is not ready, which the CSI specification calls healthy.
func TestReadyLate(t *testing.T) {
	f := newFake(registerapi.CSIPlugin)
	f.unready.Store(3)
	f.health = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	report := verifyFake(t, f, Options{Rules: []string{"CSI003", "SVC001"}})
	for _, rule := range []string{"CSI003", "SVC001"} {
		if got := resultOf(t, report, rule); got.Status != Passed {
			t.Errorf("%s: %+v", rule, got)
		}
	}
	f = newFake(registerapi.CSIPlugin)
	f.unready.Store(1 << 20)
	got := resultOf(t, verifyFake(t, f, Options{Rules: []string{"CSI003"}, StartTimeout: 300 * time.Millisecond}), "CSI003")
	if got.Status != Failed || !strings.Contains(got.Reason, "still says that the driver is not ready after 300ms") {
		t.Errorf("%+v", got)
	}
}

// TestHealthOfServices: a plugin that is healthy as a whole may have a service that is not.
func TestHealthOfServices(t *testing.T) {
	f := newFake("Plain")
	f.sick = v1beta1.Example_ServiceDesc.ServiceName
	got := resultOf(t, verifyFake(t, f, Options{}), "SVC001")
	if got.Status != Warned || !strings.Contains(got.Reason, f.sick) || !strings.Contains(got.Reason, "NOT_SERVING") {
		t.Errorf("the result is %+v", got)
	}
}

// TestOpenSocket: a socket that is open to all users fails, even in the private directory of a verification.
func TestOpenSocket(t *testing.T) {
	report := verifyProcess(t, "open to all", Options{Rules: []string{"REG002", "REG004"}})
	if got := resultOf(t, report, "REG002"); got.Status != Warned || !strings.Contains(got.Reason, "0777") {
		t.Errorf("the result is %+v", got)
	}
	if got := resultOf(t, report, "REG004"); got.Status != NotApplicable {
		t.Errorf("the result is %+v", got)
	}
}

// TestAbsent: without a socket, each rule about the path fails and reports what was tried.
func TestAbsent(t *testing.T) {
	absent := filepath.Join(shortDir(t), "none", "absent.sock")
	for _, rule := range []string{"REG001", "REG002", "REG003", "REG004"} {
		report, err := Run(t.Context(), Target{Socket: absent}, Options{Rules: []string{rule}})
		if err != nil || report.OK(false) {
			t.Errorf("%s: %v\n%s", rule, err, describe(report))
		}
		if got := resultOf(t, report, rule); strings.Contains(got.Received, "connected") {
			t.Errorf("%s: %+v", rule, got)
		}
	}
}

// TestTraceOfNothing: without an answer the trace shows none.
func TestTraceOfNothing(t *testing.T) {
	var tr trace
	for range 2 * maxTraced {
		tr.add("a", "")
	}
	if sent, received := tr.texts(); sent == "" || received != "" {
		t.Errorf("sent %q, received %q", sent, received)
	}
}
