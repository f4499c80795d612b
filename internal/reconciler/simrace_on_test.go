//go:build race

package reconciler_test

// One goroutine at a time runs in a simulation, so the race detector has little to find there, and takes ten times as long: the seeds are
// the first of those that are run without it.
const simulations, perScenario, repeated = 200, 1, 10

const crowd = 1_000
