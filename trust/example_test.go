package trust_test

import (
	"errors"
	"fmt"

	"github.com/patchbay-dev/patchbay/trust"
)

// Find out in code why something was refused; the reasons are also labels of metrics.
func ExampleRefusal() {
	err := fmt.Errorf("cannot register the plugin: %w", &trust.Refusal{
		Reason: trust.PluginType, Problem: "user 4000 may not register plugins of type DevicePlugin", Remedy: "name the user in its policy",
	})
	if refusal, ok := errors.AsType[*trust.Refusal](err); ok {
		fmt.Println(refusal.Reason)
		fmt.Println(refusal)
	}
	// Output:
	// type
	// user 4000 may not register plugins of type DevicePlugin; name the user in its policy
}
