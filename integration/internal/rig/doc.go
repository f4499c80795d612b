// Package rig has what the programs need that load and soak the daemon: the daemon as a process whose use of memory, descriptors and
// goroutines is known, and plugins by the thousand in the calling process. It knows nothing of what is done with them.
package rig
