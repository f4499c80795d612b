package sdktest_test

import (
	"errors"
	"testing"

	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk/sdktest"
)

// The test of a plugin whose main calls run, which is greeterPlugin(nil) here.
func Example() {
	_ = func(t *testing.T) { // TestHello
		run := greeterPlugin(nil)
		host := sdktest.NewHost(t, "Greeter")

		host.Refuse(errors.New("the host is not ready"))
		launched := host.Launch(run)
		host.Refuse(nil)
		client := v1beta1.NewExampleClient(host.Conn("Greeter", "hello"))
		if _, err := client.GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{}); err != nil {
			t.Error(err)
		}

		host.Restart()
		host.Registered("Greeter", "hello")

		if err := launched.Stop(); err != nil {
			t.Error(err)
		}
		host.Deregistered("Greeter", "hello")
		for _, record := range launched.Logs() {
			t.Log(record.Level, record.Message)
		}
	}
}

// The test of a plugin that asks its host for metadata of packages, as an admission plugin does for signatures.
func ExampleHost_SetMetadata() {
	_ = func(t *testing.T) { // TestSignature
		host := sdktest.NewHost(t, "Greeter")
		signed := plugin.Pin{PackageName: "tools/example", InstanceID: "i"}
		host.SetMetadata(signed, plugin.Metadata{Key: "signature", Value: []byte("good")})
		host.Launch(greeterPlugin(nil))

		client := v1beta1.NewExampleClient(host.Conn("Greeter", "hello"))
		answer, err := client.GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{Request: signed.PackageName})
		if err != nil || answer.GetError() != "signature=good" {
			t.Errorf("the plugin saw %q, %v", answer.GetError(), err)
		}
	}
}
