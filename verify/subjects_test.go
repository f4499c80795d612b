//go:build linux

package verify

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/verify/internal/runner"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// The parts of a CSI driver that is registered by another program.
const (
	bareDriver    = "bare CSI driver"
	bareRegistrar = "registrar"
)

// serveBare serves a CSI driver without registration.
func serveBare(path string) (stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	f, server := newFake(registerapi.CSIPlugin), grpc.NewServer()
	csi.RegisterIdentityServer(server, f)
	csi.RegisterNodeServer(server, f)
	return runner.Serve(server, listener), nil
}

// playPart is the driver or its registrar, until SIGTERM.
func playPart(name string) error {
	ctx, end := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer end()
	driver := filepath.Join(os.Getenv("DRIVER_DIR"), "csi.sock")
	if name == bareDriver {
		if err := os.Remove(driver); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		stop, err := serveBare(driver)
		if err != nil {
			return err
		}
		<-ctx.Done()
		stop()
		return nil
	}
	for ctx.Err() == nil { // registrars wait for their driver
		if conn, err := (&net.Dialer{}).DialContext(ctx, "unix", driver); err == nil {
			_ = conn.Close()
			break
		}
		runner.Pause(ctx, time.Millisecond, nil)
	}
	path := filepath.Join(os.Getenv("PATCHBAY_PLUGIN_DIR"), "a.example.com-reg.sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	syscall.Umask(0o077)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return err
	}
	f, server := newFake(registerapi.CSIPlugin), grpc.NewServer()
	f.info.Endpoint = driver
	registerapi.RegisterRegistrationServer(server, f)
	stop := runner.Serve(server, listener)
	<-ctx.Done()
	stop()
	return nil
}

// TestDriverAndRegistrar: two programs are verified as one plugin, which is started, killed and stopped as one.
func TestDriverAndRegistrar(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	part := func(name string) []string {
		return []string{"/usr/bin/env", fakeEnv + "=" + name, "GORACE=atexit_sleep_ms=0", self}
	}
	report := unhindered(t, Target{
		Driver: part(bareDriver), Command: part(bareRegistrar), Env: []string{"DRIVER_DIR={tmp}"}, NoHandshake: true,
	}, Options{Skip: []string{"PRC007"}}) // both instances use the same path
	if !report.OK(true) || len(report.Programs) != 2 || report.VendorVersion != "1" {
		t.Errorf("%+v\n%s", report.Programs, describe(report))
	}
	for rule, want := range map[string]Status{
		"CSI001": Passed, "CSI005": Passed, "CSI006": NotApplicable, "CSI007": Passed, "CSI011": NotApplicable, "REG010": Passed,
		"REG013": Passed, "PRC003": Passed, "PRC004": Passed, "PRC006": Passed,
	} {
		if got := resultOf(t, report, rule); got.Status != want {
			t.Errorf("%s is %s, want %s: %s", rule, got.Status, want, got.Reason)
		}
	}
}

// TestBareSocket: for the endpoint of a driver, the report names the service, and what to verify instead.
func TestBareSocket(t *testing.T) {
	path := filepath.Join(shortDir(t), "csi.sock")
	stop, err := serveBare(path)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	report := unhindered(t, Target{Socket: path}, Options{})
	got := resultOf(t, report, "REG005")
	if got.Status != Failed || !strings.Contains(got.Reason, `the endpoint of the CSI driver "a.example.com"`) ||
		!strings.Contains(got.Remedy, "--driver") || report.Count(Failed) != 1 {
		t.Errorf("%+v\n%s", got, describe(report))
	}
	if len(report.Programs) != 1 || len(report.Programs[0].SHA256) != 64 {
		t.Errorf("programs %+v", report.Programs)
	}
}

// TestBareCommand: a command that serves a driver without registering it is recognised, too.
func TestBareCommand(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	report := unhindered(t, Target{
		Command: []string{self}, NoHandshake: true,
		Env: []string{fakeEnv + "=" + bareDriver, "DRIVER_DIR={dir}", "GORACE=atexit_sleep_ms=0"},
	}, Options{StartTimeout: 3 * time.Second, Rules: []string{"PRC001"}})
	if got := resultOf(t, report, "PRC001"); got.Status != Failed || !strings.Contains(got.Reason, "the endpoint of the CSI driver") {
		t.Errorf("%+v", got)
	}
}

// TestReportSaysWhat: the report describes what was verified, also as JUnit XML.
func TestReportSaysWhat(t *testing.T) {
	report := verifyProcess(t, "conforming", Options{Rules: []string{"REG"}})
	report.Verifier = "v1.2.3"
	var out bytes.Buffer
	var got junitSuites
	if err := errors.Join(report.WriteJUnit(&out, false), xml.Unmarshal(out.Bytes(), &got)); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := digestOf(self)
	if err != nil || got.Suites[0].Properties == nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	all := fmt.Sprint(*got.Suites[0].Properties)
	if want := fmt.Sprint([]junitProperty{
		{"verifier", "v1.2.3"}, {"type", "Plain"}, {"name", "a.example.com"}, {"versions", "v1beta1"}, {"program", self}, {"sha256", digest},
	}); all != want {
		t.Errorf("properties are %s, want %s", all, want)
	}
}
