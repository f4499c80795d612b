// Package dirwatch states which Unix sockets exist in a set of directory trees, and says what changes, promptly and truthfully.
//
// It knows paths, identities ([sock.ID]), owners and modes and nothing else: it connects to no socket, and asks whom to trust.
//
// File events are hints, never facts. Each event leads to a look at the path that it names, and what is seen there is what is reported;
// events that were lost, or that the system never sends (bind mounts, a full queue, a file system without them), are made up for by a
// scan. The scan is cheap: it looks at the directories only and reads those that changed. What hinders the watcher for the moment shows
// as a [Condition].
//
// What counts:
//   - A socket in a root or in any directory below it. Names that start with a dot are ignored, files and directories, and so is
//     whatever is no socket. Symbolic links are not followed; only a root may be one.
//   - What Config.Trust refuses is not used, with everything below it, until it is mended.
//   - The same tree gives the same facts whenever the watcher starts.
package dirwatch
