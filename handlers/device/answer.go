package device

import (
	"fmt"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// maxEntries bounds the entries of an answer, maxAnswer the bytes of its texts.
	maxEntries = 4096
	maxAnswer  = 512 << 10
)

// Answer says what to set up for the owner of devices. It is the ContainerAllocateResponse of the device plugin API, as the plugin sent it:
// nothing has checked that the paths exist, or that the owner may use them.
type Answer struct {
	// Envs are environment variables.
	Envs   map[string]string `json:"envs,omitempty"`
	Mounts []Mount           `json:"mounts,omitempty"`
	// Devices are device nodes.
	Devices []Node `json:"devices,omitempty"`
	// Annotations are for a container runtime.
	Annotations map[string]string `json:"annotations,omitempty"`
	// CDIDevices are names of devices of the Container Device Interface, for example vendor.com/gpu=gpudevice1.
	CDIDevices []string `json:"cdiDevices,omitempty"`
}

// Mount is a path of the host to mount.
type Mount struct {
	ContainerPath string `json:"containerPath"`
	HostPath      string `json:"hostPath"`
	ReadOnly      bool   `json:"readOnly,omitempty"`
}

// Node is a device node of the host.
type Node struct {
	ContainerPath string `json:"containerPath"`
	HostPath      string `json:"hostPath"`
	// Permissions are any of r (read), w (write) and m (mknod).
	Permissions string `json:"permissions"`
}

func answerOf(response *pluginapi.ContainerAllocateResponse) (Answer, error) {
	size := 0
	text := func(s string) string {
		size += len(s)
		return s
	}
	a := Answer{Envs: response.GetEnvs(), Annotations: response.GetAnnotations()}
	for _, m := range response.GetMounts() {
		a.Mounts = append(a.Mounts, Mount{text(m.GetContainerPath()), text(m.GetHostPath()), m.GetReadOnly()})
	}
	for _, d := range response.GetDevices() {
		a.Devices = append(a.Devices, Node{text(d.GetContainerPath()), text(d.GetHostPath()), text(d.GetPermissions())})
	}
	for _, d := range response.GetCdiDevices() {
		a.CDIDevices = append(a.CDIDevices, text(d.GetName()))
	}
	for _, texts := range []map[string]string{a.Envs, a.Annotations} {
		for k, v := range texts {
			size += len(k) + len(v)
		}
	}
	entries := len(a.Envs) + len(a.Mounts) + len(a.Devices) + len(a.Annotations) + len(a.CDIDevices)
	switch {
	case entries > maxEntries:
		return Answer{}, fmt.Errorf("the answer has %d entries, and more than %d are not allowed", entries, maxEntries)
	case size > maxAnswer:
		return Answer{}, fmt.Errorf("the answer has texts of %d bytes, and more than %d are not allowed", size, maxAnswer)
	}
	return a, nil
}
