package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/patchbay-dev/patchbay/integration/internal/programs"
)

// verification is what "verify -o json" says.
type verification struct {
	Type    string               `json:"type"`
	Name    string               `json:"name"`
	Results []verificationResult `json:"results"`
}

type verificationResult struct {
	Rule   string `json:"rule"`
	Status string `json:"status"`
	Reason string `json:"reason"`
}

// blamesMachine tells whether the machine was too busy to say.
func (r verificationResult) blamesMachine() bool {
	return r.Status == "inconclusive"
}

// verified returns what "verify -o json" with these arguments says.
func verified(t *testing.T, args ...string) (v verification) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "patchbay"), append([]string{"verify", "-o", "json"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	if err := json.Unmarshal(stdout, &v); err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	return v
}

// checkRules verifies a command, of which only some rules may not pass, and only some may not apply.
func checkRules(t *testing.T, wantType string, doubtful, families []string, args ...string) {
	t.Helper()
	v := verified(t, args...)
	for attempts := 1; attempts < 4 && slices.ContainsFunc(v.Results, verificationResult.blamesMachine); attempts++ {
		t.Logf("again: %+v", v)
		v = verified(t, args...)
	}
	if v.Type != wantType {
		t.Errorf("the type is %q, want %q", v.Type, wantType)
	}
	applied := map[string]bool{}
	for _, r := range v.Results {
		switch {
		case r.Status == "passed":
			applied[r.Rule[:3]] = true
		case r.Status == "warned" && slices.Contains(doubtful, r.Rule), r.Status == "not-applicable", r.blamesMachine():
		default:
			t.Errorf("%s is %s: %s", r.Rule, r.Status, r.Reason)
		}
		t.Logf("%s %s %s", r.Rule, r.Status, r.Reason)
	}
	if len(args) > 1 {
		families = append(families, "PRC") // it was given a command
	}
	for _, family := range append(families, "REG", "CON") {
		if !applied[family] {
			t.Errorf("no rule of the family %s passed", family)
		}
	}
}

// The plugin's socket is called dp.<seconds>, which is no fault. It binds in place, so it may refuse connections for a moment.
func TestVerifySampleDevicePlugin(t *testing.T) {
	forgetSampleFiles(t)
	control := filepath.Join(t.TempDir(), "register")
	if err := os.WriteFile(control, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	checkRules(t, "DevicePlugin", []string{"PRC002"}, []string{"DEV"},
		"--env", "PLUGIN_SOCK_DIR={dir}", "--env", "REGISTER_CONTROL_FILE="+control, "--", filepath.Join(bin, "sample-device-plugin"))
}

// The same plugin as the kubelet has known it for long: at the kubelet's own path, where it registers by itself.
func TestVerifySampleDevicePluginAtKubeletSock(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("only root can show the plugin another directory in the place of the kubelet's")
	}
	forgetSampleFiles(t)
	checkRules(t, "DevicePlugin", []string{"PRC002"}, []string{"DEV", "KUB"},
		"--kubelet-sock", "--", filepath.Join(bin, "atkubelet"), "{dir}", filepath.Join(bin, "sample-device-plugin"))
}

// TestVerifyWatchful: run at the kubelet's path, the sample plugin watches its own directory for kubelet.sock. That makes it no host.
func TestVerifyWatchful(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("only root can show the plugin another directory in the place of the kubelet's")
	}
	dir, control := shortTempDir(t), filepath.Join(t.TempDir(), "register")
	if err := os.WriteFile(control, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, []string{"REGISTER_CONTROL_FILE=" + control}, "atkubelet", dir, filepath.Join(bin, "sample-device-plugin"))
	p.waitForLine("Starting watching routine")
	sockets, err := filepath.Glob(filepath.Join(dir, "dp.*"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("sockets %q, %v", sockets, err)
	}
	checkRules(t, "DevicePlugin", nil, []string{"ENV", "DEV"}, sockets[0])
}

// The helper removes what is at its path when it starts, and again when it ends, whoever made it: two instances must not share one.
func TestVerifyDRADriver(t *testing.T) {
	checkRules(t, "DRAPlugin", []string{"PRC002", "PRC007"}, []string{"DRA"}, "--claim", "default/one/1", "--",
		filepath.Join(bin, "dradriver"), "-driver-name", draName, "-registrar-dir", "{dir}", "-data-dir", "{tmp}", "-claims", draClaims)
}

// As in a rolling update, instances have sockets of their own. The driver knows no claim that it cannot prepare and the helper accepts, but
// the one that is broken.
func TestVerifyDRARollOver(t *testing.T) {
	checkRules(t, "DRAPlugin", []string{"PRC002"}, []string{"DRA"},
		"--claim", "default/one/1", "--claim", "default/two/2", "--claim", "default/broken/3", "--",
		filepath.Join(bin, "dradriver"), "-driver-name", draName, "-registrar-dir", "{dir}", "-data-dir", "{tmp}", "-claims", draClaims,
		"-health", "-rolling-update-uid", "{instance}")
}

// A driver and its registrar are verified as one plugin. The second instance of the driver takes the socket of the first over.
func TestVerifyDriverAndRegistrar(t *testing.T) {
	if err := buildExamples(); err != nil {
		t.Fatal(err)
	}
	driver := filepath.Join(bin, "hostdir") + " --socket {tmp}/{instance}.sock --root {tmp} --node-id node-1"
	checkRules(t, "CSIPlugin", []string{"PRC002", "PRC007"}, []string{"CSI"}, "--driver", driver, "--",
		filepath.Join(bin, "csiregistrar"), "-csi-address", "{tmp}/{instance}.sock", "-registrar-dir", "{dir}")
}

// The examples keep all rules.
func TestVerifyExamples(t *testing.T) {
	dir := t.TempDir() + string(filepath.Separator)
	if err := programs.Build(t.Context(), "../examples", dir, false, "./hello", "./plugin"); err != nil {
		t.Fatal(err)
	}
	checkRules(t, "ExamplePlugin", nil, []string{"SVC"}, "--strict", "--", dir+"hello")
	checkRules(t, "ExamplePlugin", nil, []string{"SVC"}, "--strict", "--no-handshake", "--", dir+"hello", "{socket}")
	checkRules(t, "ExamplePlugin", nil, nil, "--strict", "--", dir+"plugin", "{socket}", "ExamplePlugin", "one")
}
