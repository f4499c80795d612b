//go:build race

package supervise_test

// A simulation is one goroutine, so the race detector has nothing to find there, and takes ten times as long: the seeds are the first of those
// that are run without it, which "make test" does too.
const defaultSeeds = 50
