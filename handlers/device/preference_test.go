package device

import "testing"

// A resource of which nobody has an allocation may be forgotten while a plugin of it is asked.
func TestPreferenceOfAForgottenResource(t *testing.T) {
	h, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	p := &devicePlugin{resource: "example.com/gadget", options: options{preferred: true}}
	if ids := h.preference(t.Context(), p, wish{Count: 1}); ids != nil {
		t.Errorf("preferred are %q", ids)
	}
}
