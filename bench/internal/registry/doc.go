// Package registry is the process of a contestant that keeps plugins which are registered: a [Subject]. The benchmark drives it through a
// [Registry]. It does not depend on any contestant, so that each can be a program of its own.
package registry
