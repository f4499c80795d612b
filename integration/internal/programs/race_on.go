//go:build race

package programs

// Raced says whether this program has the race detector.
const Raced = true
