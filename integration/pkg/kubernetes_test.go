package pkg

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// manifests returns the objects of the manifest. An unknown field, or a value of the wrong type, fails the test.
func manifests(t *testing.T) []runtime.Object {
	t.Helper()
	content, err := os.ReadFile(absolute(t, "deploy", "kubernetes", "patchbay.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var objects []runtime.Object
	for documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		objects = append(objects, object)
	}
}

// only returns the one object of a type.
func only[T runtime.Object](t *testing.T) (found T) {
	t.Helper()
	n := 0
	for _, object := range manifests(t) {
		if o, ok := object.(T); ok {
			found = o
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%d objects of type %T, want one", n, found)
	}
	return found
}

func TestDaemonSetHasLeastPrivileges(t *testing.T) {
	pod := only[*appsv1.DaemonSet](t).Spec.Template.Spec
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers", len(pod.Containers))
	}
	container := pod.Containers[0]
	security := container.SecurityContext
	if *security.Privileged || *security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem || len(security.Capabilities.Add) > 0 ||
		!slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		security.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the container may do more than it needs: %s", security)
	}
	if *pod.AutomountServiceAccountToken {
		t.Error("the pod gets a token for the API server, which it does not speak to")
	}
	var writable []string
	for _, mount := range container.VolumeMounts {
		if !mount.ReadOnly {
			writable = append(writable, mount.MountPath)
		}
	}
	if want := []string{"/run/patchbay", "/var/lib/patchbay", "/tmp"}; !slices.Equal(writable, want) {
		t.Errorf("it may write to %q, want %q", writable, want)
	}
}

// The probes ask the daemon, which listens on the loopback interface of the network that it is in, at the port that is configured.
func TestProbesReachTheDaemon(t *testing.T) {
	pod := only[*appsv1.DaemonSet](t).Spec.Template.Spec
	if !pod.HostNetwork {
		t.Error("the kubelet reaches the loopback interface of the node only")
	}
	config := only[*corev1.ConfigMap](t).Data["patchbay.yaml"]
	if !bytes.Contains([]byte(config), []byte("http: 127.0.0.1:9477\n")) {
		t.Errorf("the daemon listens elsewhere: %s", config)
	}
	c := pod.Containers[0]
	for path, probe := range map[string]*corev1.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if get := probe.HTTPGet; get == nil || get.Path != path || get.Host != "127.0.0.1" || get.Port.IntValue() != 9477 {
			t.Errorf("the probe of %s is %v", path, probe)
		}
	}
}

// The objects belong together: every volume that is mounted exists, and the configuration is one that the daemon takes.
func TestManifestIsConsistent(t *testing.T) {
	set := only[*appsv1.DaemonSet](t)
	if set.Spec.Selector.MatchLabels["app.kubernetes.io/name"] != set.Spec.Template.Labels["app.kubernetes.io/name"] {
		t.Error("the selector does not select the pods")
	}
	namespace := only[*corev1.Namespace](t).Name
	config := only[*corev1.ConfigMap](t)
	account := only[*corev1.ServiceAccount](t)
	for _, got := range []string{set.Namespace, config.Namespace, account.Namespace} {
		if got != namespace {
			t.Errorf("an object is in the namespace %q, want %q", got, namespace)
		}
	}
	pod := set.Spec.Template.Spec
	if pod.ServiceAccountName != account.Name {
		t.Errorf("the service account is %q, want %q", pod.ServiceAccountName, account.Name)
	}
	volumes := map[string]corev1.Volume{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v
	}
	for _, mount := range pod.Containers[0].VolumeMounts {
		v, ok := volumes[mount.Name]
		if !ok {
			t.Errorf("%s is no volume", mount.Name)
		}
		if v.HostPath != nil && v.HostPath.Path != mount.MountPath {
			t.Errorf("%s of the host is %s in the container: sockets have the paths of the host", v.HostPath.Path, mount.MountPath)
		}
		delete(volumes, mount.Name)
	}
	if len(volumes) > 0 {
		t.Errorf("volumes that nothing mounts: %v", volumes)
	}
	if v := pod.Volumes[0].ConfigMap; v == nil || v.Name != config.Name {
		t.Errorf("the configuration is not mounted: %v", pod.Volumes[0])
	}
	file := filepath.Join(t.TempDir(), "patchbay.yaml")
	if err := os.WriteFile(file, []byte(config.Data["patchbay.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "./cmd/patchbay", "config", "check", file)
	cmd.Dir = repository
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}
