// Package sdk is for plugin authors: [Serve] turns a program with a gRPC service into a well-behaved plugin.
//
//	err := sdk.Serve(ctx, sdk.Plugin{
//		Type: "Greeter", Name: "hello", Versions: []string{"1.0.0"},
//		Socket:   "/run/patchbay/plugins/hello.sock",
//		Register: func(s grpc.ServiceRegistrar) { hellopb.RegisterHelloServer(s, hello{}) },
//	})
//
// The socket appears once the plugin answers on it, and is removed before the plugin stops answering. It serves the plugin's own services,
// the kubelet's registration service (pluginregistration/v1), grpc.health.v1 and reflection. The same program can be started by hand, by
// systemd with socket activation, or by a host:
//
//   - Launched by a host, it reads a line of JSON on standard input that says where to serve, and stops at the end of standard input.
//     The host reads what [Logger] writes, and [Host] calls the host's services.
//   - With socket activation (LISTEN_FDS) it serves on the inherited socket, which systemd keeps.
//   - Otherwise it creates [Plugin.Socket].
//
// The package does not cover how hosts find and use plugins. For admission plugins, which only answer their host, use package
// sdk/admission; to test a plugin, use sdk/sdktest.
package sdk
