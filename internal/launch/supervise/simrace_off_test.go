//go:build !race

package supervise_test

const defaultSeeds = 20_000
