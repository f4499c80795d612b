//go:build !race

package reconciler_test

// How many seeds simulations have: those of TestSimulation, those of each scenario, and those that are repeated.
const simulations, perScenario, repeated = 20_000, 40, 300
