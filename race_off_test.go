//go:build !race

package patchbay_test

const underRace = false
