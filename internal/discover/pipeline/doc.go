// Package pipeline joins the parts of discovery: directories in, handler calls out. internal/discover/dirwatch states facts about sockets,
// package cache keeps them, package reconciler acts on them; here is what stands between: who may have what is found, and how it is
// reached. It has no opinion on plugins.
//
// Package pluginwatcher shows it to host authors under the kubelet's names, and brings the example plugin, which a host that imports only
// the runtime does not have in its program.
package pipeline
