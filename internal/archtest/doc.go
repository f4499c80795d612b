// Package archtest holds tests that keep the structure of this module true to its documents: that packages import only downwards
// in the tables of ARCHITECTURE.md and are all in them, that every package says what it is for, that none is a container
// for leftovers, and that the module depends on no heavy module.
//
// It has no code of its own, and it judges structure only; style is the linter's business.
package archtest
