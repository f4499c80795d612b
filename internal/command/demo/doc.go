// Package demo shows the whole life of two plugins, with real processes, in a temporary directory: it is the command "patchbay demo".
//
// The program runs itself twice more: as a daemon ([Host]), which is a patchbay.Runtime with a state file, and as plugins
// ([Plugin]). The first process ([Run]) starts and kills the others, like an operator would, and tells what happens. All children
// end when their standard input does, so none survives the first process whatever becomes of it.
package demo
