//go:build race

package supervise_test

// A simulation is one goroutine, so the race detector finds nothing in it and makes it ten times slower. With the detector only the first
// seeds are run; "make test" also runs all of them without it.
const defaultSeeds = 50
