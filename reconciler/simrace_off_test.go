//go:build !race

package reconciler_test

const simulations = 20_000
