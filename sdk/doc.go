// Package sdk is for the authors of plugins: [Serve] makes a program with a gRPC service into a plugin that behaves well.
//
//	err := sdk.Serve(ctx, sdk.Plugin{
//		Type: "Greeter", Name: "hello", Versions: []string{"1.0.0"},
//		Socket:   "/run/patchbay/plugins/hello.sock",
//		Register: func(s grpc.ServiceRegistrar) { hellopb.RegisterHelloServer(s, hello{}) },
//	})
//
// The socket appears when the plugin answers on it and goes before it stops answering; beside the plugin's services it has the
// registration service of the kubelet (pluginregistration/v1), grpc.health.v1 and reflection. The same program runs started by hand, by
// systemd with socket activation, or launched by a host:
//
//   - Launched, it has a line of JSON on standard input, which says where to serve; the end of standard input asks it to stop. [Logger]
//     sends its log to the host, [Host] calls the host's services.
//   - With socket activation (LISTEN_FDS) it serves on the socket that it inherited, which stays systemd's.
//   - Else it makes [Plugin.Socket].
//
// The package knows nothing of how hosts find and use plugins. Admission plugins, which only answer their host, want package
// sdk/admission; tests of plugins want sdk/sdktest.
package sdk
