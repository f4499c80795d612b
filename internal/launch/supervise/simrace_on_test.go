//go:build race

package supervise_test

const defaultSeeds = 500 // each takes ten times as long
