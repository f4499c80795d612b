// Package sock is what the rest of Patchbay knows about Unix sockets: which socket is at a path ([Stat], [ID]), who serves it ([PeerOf]),
// whether anyone accepts on it ([Probe]), how to connect ([Dial]), how to own one ([Listen]), and when its peer goes ([Watcher]).
//
// It knows nothing of plugins, gRPC or directories: whoever watches a directory for sockets wants package dirwatch.
//
// All of it works on Linux. On macOS there is no watching of peers, and on Windows no listening and no peers either; what is missing
// returns an error that wraps [errors.ErrUnsupported].
package sock
