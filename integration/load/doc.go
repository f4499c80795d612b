// Package load has the tests that put many of everything before the daemon: sockets that come and go without end, subscribers, processes,
// and more than it has descriptors for. Without flags they are short; "make load" runs them at the size that is planned for.
package load
