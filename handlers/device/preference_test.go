package device

import (
	"testing"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// A resource of which nobody has an allocation may be forgotten while a plugin of it is asked.
func TestPreferenceOfAForgottenResource(t *testing.T) {
	h := &Handler{}
	if err := h.Open(); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	p := &devicePlugin{resource: "example.com/gadget", options: &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}}
	if ids := h.preference(t.Context(), p, wish{Count: 1}); ids != nil {
		t.Errorf("preferred are %q", ids)
	}
}
