//go:build race

package reconciler_test

const simulations = 2_000
