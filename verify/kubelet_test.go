//go:build linux

package verify

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/verify/internal/runner"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// kubeletOf is the prefix of fakeEnv for device plugins that register on kubelet.sock.
const kubeletOf = "kubelet "

// verifyRegistering verifies a device plugin that registers on kubelet.sock.
func verifyRegistering(t *testing.T, name string, options Options) Report {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return unhindered(t, Target{
		Command: []string{self}, NoHandshake: true, KubeletSock: true, Env: []string{fakeEnv + "=" + kubeletOf + name, "GORACE=atexit_sleep_ms=0"},
	}, options)
}

// TestRegisters: a device plugin that registers by itself passes the rules that apply to it.
func TestRegisters(t *testing.T) {
	t.Parallel()
	report := verifyRegistering(t, "", Options{})
	if !report.OK(true) || report.Type != registerapi.DevicePlugin || report.Name != "example.com/a" {
		t.Errorf("%s/%s:\n%s", report.Type, report.Name, describe(report))
	}
	for rule, want := range map[string]Status{
		"KUB001": Passed, "KUB002": Passed, "REG001": Passed, "REG007": Passed, "REG010": Passed, "DEV002": Passed, "CON001": Passed,
		"CON003": Passed, "PRC004": Passed, "PRC005": Passed, "PRC006": Passed, "PRC007": Passed, "REG005": NotApplicable, "REG011": NotApplicable,
	} {
		if got := resultOf(t, report, rule); got.Status != want {
			t.Errorf("%s is %s, want %s: %s", rule, got.Status, want, got.Reason)
		}
	}
}

// TestDoesNotRegister: the report names the mistake in a registration.
func TestDoesNotRegister(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rule   string
		status Status
		want   string
	}{
		"exits":    {"KUB002", Warned, "must be restarted"},
		"KUB002":   {"KUB002", Failed, "nobody registered"},
		"escapes":  {"PRC001", Failed, "is not a socket in"},
		"unserved": {"PRC001", Failed, "nobody can be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := verifyRegistering(t, name, Options{StartTimeout: 4 * time.Second, Rules: []string{"PRC001", "KUB"}})
			if got := resultOf(t, report, tc.rule); got.Status != tc.status || !strings.Contains(got.Reason, tc.want) {
				t.Errorf("%+v", got)
			}
		})
	}
	report := verifyProcess(t, "conforming", Options{Rules: []string{"KUB"}})
	if got := resultOf(t, report, "KUB001"); got.Status != NotApplicable {
		t.Errorf("a plugin that is asked: %+v", got)
	}
}

// TestKubeletRuns: the socket of a running kubelet is not replaced.
func TestKubeletRuns(t *testing.T) {
	dir := shortDir(t)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, runner.KubeletSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = Run(t.Context(), Target{Command: []string{"/bin/true"}, Dir: dir, KubeletSock: true}, Options{})
	if err == nil || !strings.Contains(err.Error(), "cannot play the kubelet") {
		t.Errorf("the error is %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, runner.KubeletSocket)); err != nil {
		t.Error(err)
	}
}
