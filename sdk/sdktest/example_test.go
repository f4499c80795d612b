package sdktest_test

import (
	"errors"
	"testing"

	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk/sdktest"
)

// The test of a plugin whose main calls run, which is greeterPlugin(nil) here.
func Example() {
	_ = func(t *testing.T) { // TestHello
		run := greeterPlugin(nil)
		host := sdktest.NewHost(t, "Greeter")

		host.Refuse(errors.New("the host is not ready"))
		plugin := host.Launch(run)
		host.Refuse(nil)
		client := v1beta1.NewExampleClient(host.Conn("Greeter", "hello"))
		if _, err := client.GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{}); err != nil {
			t.Error(err)
		}

		host.Restart()
		host.Registered("Greeter", "hello")

		if err := plugin.Stop(); err != nil {
			t.Error(err)
		}
		host.Deregistered("Greeter", "hello")
		for _, record := range plugin.Logs() {
			t.Log(record.Level, record.Message)
		}
	}
}
