package fleet_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestDaemonSetReadiness runs what is in the containers of the DaemonSet of the examples: its pod is ready while the driver is registered.
// bench/kubelet rolls versions of it with the controller of Kubernetes.
func TestDaemonSetReadiness(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../../examples/fleet/hostdir.daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	object, _, err := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer().Decode(content, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pod := object.(*appsv1.DaemonSet).Spec.Template.Spec
	if len(pod.Containers) != 2 {
		t.Fatalf("%d containers", len(pod.Containers))
	}
	d := newDaemon(t, program(t, "patchbay"), "node-1")
	d.start()
	programs := map[string]string{"hostdir": program(t, "hostdir"), "registered": d.program}
	moved := strings.NewReplacer("/var/lib/kubelet/plugins_registry", filepath.Join(d.dir, "plugins"), "/var/lib/hostdir", t.TempDir(),
		"$(NODE)", d.name)
	start := func(c corev1.Container) *exec.Cmd {
		t.Helper()
		cmd := exec.Command(programs[c.Name])
		for _, arg := range c.Args {
			cmd.Args = append(cmd.Args, moved.Replace(arg))
		}
		cmd.Env = append(os.Environ(), "PATCHBAY_CONTROL_SOCKET="+filepath.Join(d.dir, "control.sock"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	i := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.ReadinessProbe != nil })
	probe := pod.Containers[i].ReadinessProbe.Exec.Command
	if probe[0] != "patchbay" || pod.Containers[i].Name != "registered" {
		t.Fatalf("the probe of %s is %q", pod.Containers[i].Name, probe)
	}
	ready := func() bool { _, err := d.try(probe[1:]...); return err == nil }
	start(pod.Containers[i])
	if ready() {
		t.Error("the pod is ready before there is a driver")
	}
	driver := start(pod.Containers[1-i])
	eventually(t, "the pod is ready", ready)
	_ = driver.Process.Kill()
	eventually(t, "the pod is not ready", func() bool { return !ready() })
	start(pod.Containers[1-i])
	eventually(t, "the pod is ready again", ready)
}
