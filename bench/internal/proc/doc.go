// Package proc is what all processes of a benchmark have in common: calls over standard input and output, a clock that they share, and
// what a process uses. It knows nothing of plugins.
package proc
