//go:build linux

package verify

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/verify/internal/runner"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/health/grpc_health_v1"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// breach is how a plugin breaks a rule.
type breach struct {
	of      string // the type; Plain if empty
	breaks  func(f *fake)
	also    []string // rules that necessarily fail, too
	warns   bool     // the rule warns at most
	watched bool     // another process watches the directory
	// registers is set for a process that registers on kubelet.sock.
	registers bool
	timeout   time.Duration
	changes   bool // its devices change
}

// broken has a plugin for each rule, which breaks that rule. A plugin without a fake is a process; see playProcess.
var broken = map[string]breach{
	"ENV001": {breaks: func(*fake) {}, warns: true, watched: true},
	"REG001": {breaks: func(f *fake) { f.socket = ".p.sock" }},
	"REG002": {breaks: func(f *fake) { f.mode = 0o666 }},
	"REG003": {breaks: func(f *fake) { f.uid = 65534 }},
	"REG004": {breaks: func(f *fake) { f.dirMode = 0o777 }},
	"REG005": {breaks: func(f *fake) { f.broken = "GetInfo" }},
	"REG006": {breaks: func(f *fake) { f.info.Type = "a/b" }},
	"REG007": {of: registerapi.DevicePlugin, breaks: func(f *fake) { f.info.Name = "gpu" }},
	"REG008": {of: registerapi.CSIPlugin, breaks: func(f *fake) { f.info.SupportedVersions = []string{"0.3.0"} }},
	"REG009": {breaks: func(f *fake) { f.again = true }, also: []string{"REG012"}},
	"REG010": {breaks: func(f *fake) { f.info.Endpoint = "relative.sock" }},
	"REG011": {breaks: func(f *fake) { f.deaf = true }},
	"REG012": {breaks: func(f *fake) {
		f.conns = func(f *fake, conn net.Conn) net.Conn {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.lost = f.told > 0 // it serves only the first host after its registration
			return conn
		}
	}},
	"REG013": {},
	"SVC001": {breaks: func(f *fake) { f.health = grpc_health_v1.HealthCheckResponse_NOT_SERVING }},
	"SVC002": {breaks: func(f *fake) { f.useless = true }},
	"CSI001": {of: registerapi.CSIPlugin, breaks: func(f *fake) { f.pluginID = "other.example.com" }},
	"CSI002": {of: registerapi.CSIPlugin, breaks: func(f *fake) { f.broken = "GetPluginCapabilities" }},
	"CSI003": {of: registerapi.CSIPlugin, breaks: func(f *fake) { f.broken = "Probe" }},
	"CSI004": {of: registerapi.CSIPlugin, breaks: func(f *fake) { f.broken = "NodeGetCapabilities" }},
	"CSI005": {of: registerapi.CSIPlugin, breaks: func(f *fake) { f.nodeID = "" }},
	"CSI006": {of: registerapi.CSIPlugin, breaks: func(f *fake) { f.broken = "ControllerGetCapabilities" }},
	"CSI007": {of: registerapi.CSIPlugin, breaks: func(f *fake) { f.topology["example.com/Zone"] = "z1" }},
	"CSI008": {of: registerapi.CSIPlugin, breaks: func(f *fake) { f.hides = "VOLUME_ACCESSIBILITY_CONSTRAINTS" }},
	"CSI009": {of: registerapi.CSIPlugin, breaks: func(f *fake) { f.hides = "EXPAND_VOLUME" }},
	"CSI010": {of: registerapi.CSIPlugin, breaks: func(f *fake) { f.manifest["x"] = strings.Repeat("x", maxCSIMapSize) }},
	"CSI011": {of: registerapi.CSIPlugin, breaks: func(f *fake) { f.broken = "GroupControllerGetCapabilities" }},
	"CSI012": {of: registerapi.CSIPlugin, breaks: func(f *fake) { f.hides = "PUBLISH_UNPUBLISH_VOLUME" }},
	"CSI015": {of: registerapi.CSIPlugin, breaks: func(f *fake) { f.capacity = -1 }},
	"DEV001": {of: registerapi.DevicePlugin, breaks: func(f *fake) { f.broken = "GetDevicePluginOptions" }},
	"DEV002": {of: registerapi.DevicePlugin, breaks: func(f *fake) { f.devices = []*deviceapi.Device{{ID: "d"}} }},
	"DEV004": {of: registerapi.DevicePlugin, breaks: func(f *fake) { f.lists = 3 }, timeout: 4 * time.Second},
	"DEV005": {of: registerapi.DevicePlugin, breaks: func(f *fake) { f.later = []*deviceapi.Device{{ID: "d", Health: "so so"}} }},
	"DEV010": {of: registerapi.DevicePlugin, breaks: func(f *fake) { f.change = "" }, timeout: 4 * time.Second, changes: true},
	"DEV006": {of: registerapi.DevicePlugin, breaks: func(f *fake) { f.prefers = func([]string) []string { return []string{"mine"} } }},
	"DEV007": {of: registerapi.DevicePlugin},
	"DEV008": {of: registerapi.DevicePlugin},
	"DEV009": {of: registerapi.DevicePlugin},
	"DEV003": {of: registerapi.DevicePlugin, breaks: func(f *fake) { f.hangUp = true }},
	"KUB001": {registers: true},
	"KUB002": {registers: true},
	"DRA001": {of: registerapi.DRAPlugin, breaks: func(f *fake) { f.broken = "NodePrepareResources" }},
	"DRA002": {of: registerapi.DRAPlugin, breaks: func(f *fake) { f.broken = "NodeUnprepareResources" }},
	"DRA003": {of: registerapi.DRAPlugin, breaks: func(f *fake) { f.dra.broken = "DRA003" }},
	"DRA004": {of: registerapi.DRAPlugin, breaks: func(f *fake) { f.dra.broken = "DRA004" }},
	"DRA005": {of: registerapi.DRAPlugin, breaks: func(f *fake) { f.dra.broken = "DRA005" }},
	"DRA006": {of: registerapi.DRAPlugin, breaks: func(f *fake) { f.dra.broken = "DRA006" }},
	"DRA007": {of: registerapi.DRAPlugin},
	"DRA008": {of: registerapi.DRAPlugin, breaks: func(f *fake) { f.dra.broken = "DRA008" }},
	"DRA009": {of: registerapi.DRAPlugin},
	"DRA010": {of: registerapi.DRAPlugin, breaks: func(f *fake) { f.dra.broken = "DRA010" }},
	"CON001": {breaks: func(f *fake) { f.limit = manyConns / 2 }},
	"CON002": {breaks: func(f *fake) {
		f.conns = func(_ *fake, conn net.Conn) net.Conn { // reads before it accepts the next connection
			b := make([]byte, 1)
			if _, err := conn.Read(b); err != nil {
				return nil
			}
			return &prefixed{Conn: conn, first: b}
		}
	}, timeout: time.Second},
	"CON003": {breaks: func(f *fake) {
		f.eager = true
		f.conns = func(f *fake, conn net.Conn) net.Conn { return onClosedWindow(conn, f.stuck.Lock, f.stuck.Unlock) }
	}, timeout: time.Second},
	"CON004": {breaks: func(f *fake) {
		f.conns = func(f *fake, conn net.Conn) net.Conn {
			return &sniffer{Conn: conn, seen: func(b []byte) {
				if strings.HasPrefix(string(b), "GET") {
					_ = f.listener.Close() // before the server ends this connection
					go f.server.Stop()
				}
			}}
		}
	}, also: []string{}},
	"PRC001": {},
	"PRC002": {},
	"PRC003": {},
	"PRC004": {},
	"PRC005": {warns: true},
	"PRC006": {},
	"PRC007": {},
}

type prefixed struct {
	net.Conn

	first []byte
}

func (p *prefixed) Read(b []byte) (int, error) {
	if n := copy(b, p.first); n > 0 {
		p.first = p.first[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

// shortDir returns a directory with a path short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "v")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// found returns the rules that apply and did not pass.
func found(r Report) []string {
	var all []string
	for _, result := range r.Results {
		if result.Status == Failed || result.Status == Warned {
			all = append(all, result.Rule)
		}
	}
	return all
}

func describe(r Report) string {
	var text strings.Builder
	for _, result := range r.Results {
		if result.Status == NotApplicable {
			continue
		}
		fmt.Fprintf(&text, "%s %s: %s\n", result.Rule, result.Status, result.Reason)
	}
	return text.String()
}

// unhindered repeats the verification, at most a few times, until no result is attributed to a busy machine. Results that still are at the
// end are changed to not applicable; see resultOf.
func unhindered(t *testing.T, target Target, options Options) Report {
	t.Helper()
	for attempts := 1; ; attempts++ {
		report, err := Run(t.Context(), target, options)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(report.Results, blamesMachine) {
			return report
		}
		if t.Log(describe(report)); attempts == 4 {
			for i := range report.Results {
				if r := &report.Results[i]; blamesMachine(*r) {
					r.Status = NotApplicable
				}
			}
			return report
		}
	}
}

func blamesMachine(r Result) bool { return strings.HasPrefix(r.Remedy, busyRemedy) }

func verifyFake(t *testing.T, f *fake, options Options) Report {
	t.Helper()
	path, stop, err := f.serve(shortDir(t))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	return unhindered(t, Target{Socket: path}, options)
}

func verifyProcess(t *testing.T, name string, options Options) Report {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	target := Target{Command: []string{self}, NoHandshake: true, Env: []string{fakeEnv + "=" + name, "GORACE=atexit_sleep_ms=0"}}
	if name == "DRA009" || name == sideBySide {
		target.Env = append(target.Env, "SIDE="+runner.PlaceInstance)
	}
	return unhindered(t, target, options)
}

// TestConforming: plugins that conform pass all rules.
func TestConforming(t *testing.T) {
	t.Parallel()
	for _, ptype := range []string{"Plain", registerapi.CSIPlugin, registerapi.DevicePlugin, registerapi.DRAPlugin} {
		report := verifyFake(t, newFake(ptype), Options{Claims: fakeClaims})
		if !report.OK(true) || report.Type != ptype {
			t.Errorf("%s:\n%s", ptype, describe(report))
		}
		applied := slices.ContainsFunc(report.Results, func(r Result) bool {
			return r.Status == Passed && !slices.Contains(
				[]string{"ENV", "REG", "SVC", "CON"}, r.Rule[:3])
		})
		if applied != (ptype != "Plain") {
			t.Errorf("%s: rules of its type passed: %v", ptype, applied)
		}
		for _, result := range report.Results {
			if strings.HasPrefix(result.Rule, "PRC") && result.Status != NotApplicable {
				t.Errorf("%s is %s for a socket", result.Rule, result.Status)
			}
		}
	}
	if report := verifyProcess(t, "conforming", Options{}); !report.OK(true) || report.Count(Passed) < 20 {
		t.Errorf("process:\n%s", describe(report))
	}
	for name, rules := range map[string][]string{
		"devices": {"DEV007", "DEV008", "DEV009"}, sideBySide: {"DRA003", "DRA007", "DRA008", "DRA009", "DRA010", "PRC007"},
	} {
		report := verifyProcess(t, name, Options{Claims: fakeClaims})
		if !report.OK(true) {
			t.Errorf("%s:\n%s", name, describe(report))
		}
		for _, rule := range rules {
			if got := resultOf(t, report, rule); got.Status != Passed {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

// TestChange: a plugin that reports a change passes. A failure of the program that makes the change is not a failure of the plugin.
func TestChange(t *testing.T) {
	t.Parallel()
	f := newFake(registerapi.DevicePlugin)
	f.change = filepath.Join(t.TempDir(), "change")
	options := Options{Rules: []string{"DEV010"}, Change: []string{"touch", f.change}}
	if got := resultOf(t, verifyFake(t, f, options), "DEV010"); got.Status != Passed {
		t.Errorf("%+v", got)
	}
	again := newFake(registerapi.DevicePlugin)
	again.change = filepath.Join(t.TempDir(), "change")
	options.Change = []string{"sh", "-c", "touch " + again.change + "; sleep 60 &"} // sleep keeps the output open
	options.CallTimeout = time.Second
	if got := resultOf(t, verifyFake(t, again, options), "DEV010"); got.Status != Passed {
		t.Errorf("%+v", got)
	}
	options.Change = []string{"false"}
	if got := resultOf(t, verifyFake(t, newFake(registerapi.DevicePlugin), options), "DEV010"); got.Status != Warned {
		t.Errorf("%+v", got)
	}
}

// TestEachRuleCanFail verifies, for each rule, a plugin that breaks only that rule. With -short, it verifies two rules of each group.
func TestEachRuleCanFail(t *testing.T) {
	t.Parallel()
	tested := map[string]int{}
	for _, rule := range Rules() {
		b, ok := broken[rule.ID]
		if !ok {
			t.Errorf("no plugin breaks %s", rule.ID)
			continue
		}
		group := rule.ID[:3]
		if testing.Short() && tested[group] == 2 {
			continue
		}
		tested[group]++
		t.Run(rule.ID, func(t *testing.T) {
			if b.registers || b.breaks == nil { // these tests mostly wait for a process
				t.Parallel()
			}
			if rule.ID == "REG003" && os.Geteuid() != 0 {
				t.Skip("only root gives a socket to somebody else")
			}
			want := append([]string{rule.ID}, b.also...)
			slices.Sort(want)
			var report Report
			// The timeouts that keep this test short may be too short for the other rules on a busy machine.
			for slower := 1; ; slower *= 3 {
				report = verifyBreach(t, rule.ID, b, slower)
				got := found(report)
				slices.Sort(got)
				diff := cmp.Diff(want, got)
				if diff == "" {
					break
				}
				if slower > 9 {
					t.Fatalf("rules that fail (-want +got):\n%s\n%s", diff, describe(report))
				}
				t.Logf("with timeouts × %d:\n%s\n%s", slower, diff, describe(report))
			}
			for _, result := range report.Results {
				if result.Rule == rule.ID && ((result.Status == Failed) == b.warns || result.Remedy == "" || result.Reason == "") {
					t.Errorf("the result is %+v", result)
				}
			}
		})
	}
	if len(broken) != len(Rules()) {
		t.Errorf("%d broken plugins for %d rules", len(broken), len(Rules()))
	}
}

func orPlain(ptype string) string {
	if ptype == "" {
		return "Plain"
	}
	return ptype
}

// verifyBreach verifies a plugin that breaks a rule.
func verifyBreach(t *testing.T, rule string, b breach, slower int) Report {
	t.Helper()
	switch {
	case b.registers:
		return verifyRegistering(t, rule, Options{StartTimeout: time.Duration(4*slower) * time.Second, ExitTimeout: time.Duration(slower) * time.Second})
	case b.breaks == nil:
		return verifyProcess(t, rule, Options{StartTimeout: time.Duration(4*slower) * time.Second, ExitTimeout: time.Duration(slower) * time.Second, Claims: fakeClaims})
	}
	f := newFake(orPlain(b.of))
	b.breaks(f)
	options := Options{CallTimeout: b.timeout * time.Duration(slower), StartTimeout: time.Duration(slower) * time.Second, Claims: fakeClaims}
	if b.changes {
		options.Change = []string{"touch", filepath.Join(t.TempDir(), "change")}
	}
	return verifyBroken(t, f, options, b.watched)
}

func verifyBroken(t *testing.T, f *fake, options Options, watched bool) Report {
	t.Helper()
	dir := shortDir(t)
	if watched {
		watchElsewhere(t, dir)
	}
	path, stop, err := f.serve(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	return unhindered(t, Target{Socket: path}, options)
}

// watchElsewhere starts another process, which watches a directory with an inherited watch.
func watchElsewhere(t *testing.T, dir string) {
	t.Helper()
	fd, err := syscall.InotifyInit()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.InotifyAddWatch(fd, dir, syscall.IN_CREATE); err != nil {
		t.Fatal(err)
	}
	watch := os.NewFile(uintptr(fd), "inotify")
	defer watch.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	child, err := os.StartProcess("/bin/cat", []string{"cat"}, &os.ProcAttr{Files: []*os.File{r, os.Stderr, os.Stderr, watch}})
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	t.Cleanup(func() {
		_ = w.Close()
		_, _ = child.Wait()
	})
}
