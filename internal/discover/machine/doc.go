// Package machine is the state machine of plugin instances: which phase each instance is in, what its lane does next, which instance is
// current. It is pure: [Machine.Step] takes one input and returns effects, without a goroutine, clock, lock, random number or I/O. What
// executes the effects and feeds their results back is package reconciler, which is also where programs meet the types of this one.
//
// The transitions are a table, [Table], which is printed into docs/reference/states.md; a transition that it does not have is a fault.
package machine
