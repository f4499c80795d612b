// Package sdktest is a host for the tests of a plugin: the real pipeline of a Patchbay host, in the test's process and with its own
// directory, and next to it the plugin's own main function. A test sees how the plugin registers, what it does when it is refused, when the
// host restarts and when it is stopped, and calls it as a consumer would.
//
//	host := sdktest.NewHost(t, "Greeter")
//	plugin := host.Launch(run) // run is what main calls: func(ctx context.Context) error
//	host.Registered("Greeter", "hello")
//	client := hellopb.NewHelloClient(host.Conn("Greeter", "hello"))
//
// It is not for testing hosts, and starts no processes: use "patchbay verify" to test a plugin as a process.
package sdktest
