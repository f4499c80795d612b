package device

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// Allocation holds the devices of one resource that are allocated to one owner.
type Allocation struct {
	Resource string `json:"resource"`
	Owner    string `json:"owner"`
	// Devices are their IDs, in order.
	Devices []string `json:"devices"`
	// Time is when they were allocated.
	Time time.Time `json:"time"`
	// Answer is the plugin's latest answer to Allocate.
	Answer Answer `json:"answer"`
}

// wish is the stored form of a request. Equal wishes are the same request.
type wish struct {
	Count  int      `json:"count"`
	Wanted []string `json:"wanted,omitempty"` // in order
}

func (w wish) equal(other wish) bool {
	return w.Count == other.Count && slices.Equal(w.Wanted, other.Wanted)
}

// allocation is an Allocation and its state. Handler.mu guards it. Only the holder of its owner's lock changes it. The store contains the
// exported fields; unknown fields there are ignored.
type allocation struct {
	Allocation // its devices are held in resource.holders
	wish
	PreStart bool   `json:"preStart,omitempty"` // the plugin wants to prepare the devices before each start
	Boot     string `json:"boot,omitempty"`     // the ID of the boot in which the plugin answered

	given bool // it is in the store; otherwise nobody has the lock only if saving it failed, and the store may or may not contain it
}

func (a *allocation) public() Allocation {
	public := a.Allocation
	public.Devices = slices.Clone(public.Devices)
	answer := &public.Answer
	answer.Envs, answer.Annotations = maps.Clone(answer.Envs), maps.Clone(answer.Annotations)
	answer.Mounts, answer.Devices = slices.Clone(answer.Mounts), slices.Clone(answer.Devices)
	answer.CDIDevices = slices.Clone(answer.CDIDevices)
	return public
}

const allocationPrefix = "allocation/"

// key returns the key in the store. It is unique: a resource name has no space.
func (a *allocation) key() string { return allocationPrefix + a.Resource + " " + a.Owner }

func (h *Handler) load() error {
	return h.Store.ForEach(func(key string, value []byte) error {
		if !strings.HasPrefix(key, allocationPrefix) {
			return nil
		}
		if err := h.restore(key, value); err != nil {
			return fmt.Errorf("the record of allocation %s is damaged: %w; it was left as it is", untrusted.Quote(key), err)
		}
		return nil
	})
}

func (h *Handler) restore(key string, value []byte) error {
	a := &allocation{given: true}
	if err := json.Unmarshal(value, a); err != nil {
		return err
	}
	slices.Sort(a.Devices)
	if a.key() != key || len(a.Devices) == 0 {
		return fmt.Errorf("it is that of %s and has %d devices", untrusted.Quote(a.key()), len(a.Devices))
	}
	r := h.resource(a.Resource)
	for _, id := range a.Devices {
		if other := r.holders[id]; other != nil {
			return fmt.Errorf("device %s has another owner: %s", untrusted.Quote(id), untrusted.Quote(other.Owner))
		}
		r.holders[id] = a
	}
	r.allocations[a.Owner] = a
	return nil
}

const (
	// maxEntries bounds the entries of an answer, maxAnswer the bytes of its texts.
	maxEntries = 4096
	maxAnswer  = 512 << 10
)

// Answer lists what to set up for the owner of devices. It is the plugin's ContainerAllocateResponse: only its size is checked, not whether
// the paths exist or the owner may use them.
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
