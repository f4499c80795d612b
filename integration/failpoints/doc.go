// Package failpoints has a daemon fail at each of its failpoints, and looks at what happens then. The points and their outcome are in
// docs/reference/failpoints.md, which is generated from them.
//
// A point is a comment in the source of the library. The tests turn the comments into code in copies of the files, with
// go.etcd.io/gofail, and compile themselves once more with these copies in place of the files: nothing else ever has the points.
package failpoints
