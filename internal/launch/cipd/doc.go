// Package cipd speaks the wire of the CIPD plugin system to a plugin that was launched by a host: the handshake, the two services that
// such a plugin calls, and the names that both have for the content of a package. The services do nothing themselves; they translate to
// those of api/patchbay/plugin/v1, so that an admission plugin of CIPD and one of Patchbay are treated alike.
//
// It does not listen and does not know tickets: that is the business of package host.
package cipd
