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

// Answer is what is to be done for the owner of devices, as the plugin says. It is ContainerAllocateResponse of the device plugin API. The
// texts are the plugin's own: nobody has checked that the paths exist, or that the owner may have them.
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

// Mount is a path of the host to be mounted.
type Mount struct {
	ContainerPath string `json:"containerPath"`
	HostPath      string `json:"hostPath"`
	ReadOnly      bool   `json:"readOnly,omitempty"`
}

// Node is a device node of the host.
type Node struct {
	ContainerPath string `json:"containerPath"`
	HostPath      string `json:"hostPath"`
	// Permissions are some of r (read), w (write) and m (make nodes).
	Permissions string `json:"permissions"`
}

func answerOf(response *pluginapi.ContainerAllocateResponse) Answer {
	a := Answer{Envs: response.GetEnvs(), Annotations: response.GetAnnotations()}
	for _, m := range response.GetMounts() {
		a.Mounts = append(a.Mounts, Mount{ContainerPath: m.GetContainerPath(), HostPath: m.GetHostPath(), ReadOnly: m.GetReadOnly()})
	}
	for _, d := range response.GetDevices() {
		a.Devices = append(a.Devices, Node{ContainerPath: d.GetContainerPath(), HostPath: d.GetHostPath(), Permissions: d.GetPermissions()})
	}
	for _, d := range response.GetCdiDevices() {
		a.CDIDevices = append(a.CDIDevices, d.GetName())
	}
	return a
}

// check bounds an answer.
func (a Answer) check() error {
	entries := len(a.Envs) + len(a.Mounts) + len(a.Devices) + len(a.Annotations) + len(a.CDIDevices)
	if entries > maxEntries {
		return fmt.Errorf("the answer has %d entries, and more than %d are not allowed", entries, maxEntries)
	}
	size := 0
	for k, v := range a.Envs {
		size += len(k) + len(v)
	}
	for k, v := range a.Annotations {
		size += len(k) + len(v)
	}
	for _, m := range a.Mounts {
		size += len(m.ContainerPath) + len(m.HostPath)
	}
	for _, d := range a.Devices {
		size += len(d.ContainerPath) + len(d.HostPath) + len(d.Permissions)
	}
	for _, name := range a.CDIDevices {
		size += len(name)
	}
	if size > maxAnswer {
		return fmt.Errorf("the answer has texts of %d bytes, and more than %d are not allowed", size, maxAnswer)
	}
	return nil
}
