package device

import (
	"fmt"
	"slices"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

const (
	// maxOwner is the greatest length of an owner in bytes.
	maxOwner = 253
	// maxDeviceID is the greatest length of a device's ID in bytes. The API says 63, which the kubelet does not check and not every plugin
	// keeps.
	maxDeviceID = 256
)

// checkResource checks that a name is that of an extended resource.
func checkResource(resource string) error {
	return foreign.PluginName(registerapi.DevicePlugin, resource)
}

// checkVersions checks that one of the versions is supported.
func checkVersions(versions []string) error {
	if slices.Contains(versions, pluginapi.Version) {
		return nil
	}
	return fmt.Errorf("none of the versions %s of the device plugin API is supported; announce %s", foreign.QuoteAll(versions),
		pluginapi.Version)
}
