//go:build !race

package supervise_test

const defaultSeeds = 5000
