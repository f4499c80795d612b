// Package web is the status page: what a daemon's plugins do, live, for whoever may open it in a browser. It is read only, embedded in
// the program, and needs nothing from elsewhere.
//
// The page gets its data as JSON over server-sent events. One goroutine follows the daemon for all viewers, and there is none without a
// viewer. Whether a caller may see the page at all, and by which names the server is called, is decided by who serves it.
package web
