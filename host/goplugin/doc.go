// Package goplugin launches existing plugins of github.com/hashicorp/go-plugin, unchanged, on a [host.Host]: those that speak gRPC. The
// library of that project does the handshake, and TLS if it is wanted; the process is started, watched, limited and ended like that of
// every other plugin. For the plugin, which knows nothing of registration, the package serves a registration socket in the plugin
// directory, on which it is found like any other.
//
// A client reaches the plugin's services through the registry, whose dialer has to be [Connections.Dial]. Plugins that speak net/rpc are
// refused, and connections that a plugin and its host broker between each other beside the first one are not offered.
package goplugin
