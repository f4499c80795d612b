// Package statetest is the conformance suite for implementations of dynamicplugins.StateStorage: whoever writes one runs Test on it.
//
// It checks what the registry relies on: that what was put comes back, every field, every byte and in order, now and after the
// storage was opened anew, and that changes of single plugins, if the storage takes them, add up. It cannot check that a state
// survives a crash; that takes a process to kill.
package statetest
