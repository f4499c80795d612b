// Package pkg holds the tests of what is installed: the Debian package on this machine, the manifests for Kubernetes and the image. What
// the daemon does once it runs is tested elsewhere.
//
// The test of the Debian package really installs it. It is skipped where that is impossible, and where anything of Patchbay is installed
// already.
package pkg
