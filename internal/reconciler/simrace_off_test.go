//go:build !race

package reconciler_test

// How many seeds simulations have: those of TestSimulation, those of each scenario, and those that are repeated.
const simulations, perScenario, repeated = 20_000, 40, 300

// crowd is the number of plugins of TestSilentPluginsHoldNobodyUp and TestSlowMachine.
const crowd = 5_000
