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

// TestUnknownOptionsAreDropped: a plugin decides how large the unknown fields of its options are, and they would be held while it is in use.
func TestUnknownOptionsAreDropped(t *testing.T) {
	answer := &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}
	answer.ProtoReflect().SetUnknown([]byte{0x1a, 1, 'x'})
	known := knownOptions(answer)
	if len(known.ProtoReflect().GetUnknown()) > 0 || !known.GetPreStartRequired() || !known.GetGetPreferredAllocationAvailable() {
		t.Errorf("the options are %v", known)
	}
}
