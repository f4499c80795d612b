package device

import (
	"fmt"
	"maps"
	"slices"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const (
	// maxOwner is the greatest length of an owner in bytes.
	maxOwner = 253
	// maxDeviceID bounds a device's ID in bytes. The API's limit is 63, but the kubelet does not check it and some plugins exceed it.
	maxDeviceID = 256
)

func checkResource(resource string) error {
	return untrusted.PluginName(registerapi.DevicePlugin, resource)
}

func checkVersions(versions []string) error {
	if slices.Contains(versions, pluginapi.Version) {
		return nil
	}
	return fmt.Errorf("none of the versions %s of the device plugin API is supported; announce %s", untrusted.QuoteAll(versions),
		pluginapi.Version)
}

// Health is the state of a device.
type Health string

const (
	// Healthy devices can be allocated if they are free.
	Healthy Health = "healthy"
	// Unhealthy devices are listed as unhealthy by their plugin.
	Unhealthy Health = "unhealthy"
	// Unavailable devices belong to a plugin that is not registered, or whose list may be out of date.
	Unavailable Health = "unavailable"
	// Missing devices are allocated, but no longer listed by the plugin.
	Missing Health = "missing"
)

// Device is one device of a resource.
type Device struct {
	// Resource is the name of the plugin, for example example.com/gpu, and ID the plugin's ID for the device.
	Resource, ID string
	Health       Health
	// NUMANodes are the nodes close to the device according to the plugin, in order.
	NUMANodes []int64
	// Owner is the owner of the device; empty if it is free.
	Owner string
}

// resource has the devices and allocations of one resource name. Handler.mu guards it.
type resource struct {
	name   string
	plugin *devicePlugin // nil if none is registered
	gone   time.Time     // since when there is none
	// devices are those of the last list.
	devices     map[string]device
	allocations map[string]*allocation // by owner
	holders     map[string]*allocation // by device
}

func (r *resource) idle() bool { return r.plugin == nil && len(r.allocations) == 0 }

// resource returns the resource of a name, and creates it if there is none. The caller holds h.mu.
func (h *Handler) resource(name string) *resource {
	r := h.resources[name]
	if r == nil {
		r = &resource{name: name, devices: map[string]device{}, allocations: map[string]*allocation{}, holders: map[string]*allocation{}}
		h.resources[name] = r
	}
	return r
}

// available returns the plugin, if its list of devices is up to date.
func (r *resource) available() *devicePlugin {
	if r.plugin == nil || !r.plugin.watched {
		return nil
	}
	return r.plugin
}

func (r *resource) health(id string) Health {
	d, listed := r.devices[id]
	switch {
	case r.available() == nil:
		return Unavailable
	case !listed:
		return Missing
	case !d.healthy:
		return Unhealthy
	}
	return Healthy
}

func (r *resource) free() []string {
	var ids []string
	for id := range r.devices {
		if r.holders[id] == nil && r.health(id) == Healthy {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (r *resource) list() []Device {
	ids := slices.Collect(maps.Keys(r.devices))
	for id := range r.holders {
		if _, listed := r.devices[id]; !listed {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	devices := make([]Device, 0, len(ids))
	for _, id := range ids {
		d := Device{Resource: r.name, ID: id, Health: r.health(id), NUMANodes: slices.Clone(r.devices[id].nodes)}
		if a := r.holders[id]; a != nil {
			d.Owner = a.Owner
		}
		devices = append(devices, d)
	}
	return devices
}

// Snapshot returns the devices of all resources, ordered by resource and ID, and the allocations, ordered by resource and owner, of one
// moment. The devices of a plugin that is gone are included until the handler is closed, or longer if they have an owner.
func (h *Handler) Snapshot() ([]Device, []Allocation) {
	var devices []Device
	var allocations []Allocation
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(h.resources)) {
		r := h.resources[name]
		devices = append(devices, r.list()...)
		for _, owner := range slices.Sorted(maps.Keys(r.allocations)) {
			if a := r.allocations[owner]; a.given {
				allocations = append(allocations, a.public())
			}
		}
	}
	return devices, allocations
}
