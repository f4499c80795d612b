package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Origin is the file and position, or the other source, of a value.
type Origin struct {
	// source is "environment variable NAME", "flag --name" or "default"; empty for a file.
	source       string
	file         string // empty for any other source
	line, column int    // in the file, from 1; zero if unknown
}

// defaultOrigin is the origin of a value that no source sets.
var defaultOrigin = Origin{source: "default"}

// IsFile reports whether the value was read from a file.
func (o Origin) IsFile() bool { return o.file != "" }

// String returns FILE:LINE:COLUMN, as far as it is known, or the source.
func (o Origin) String() string {
	switch {
	case o.column > 0:
		return fmt.Sprintf("%s:%d:%d", o.file, o.line, o.column)
	case o.line > 0:
		return fmt.Sprintf("%s:%d", o.file, o.line)
	}
	return cmp.Or(o.file, o.source)
}

// FieldError is an error in one value of a configuration, whose origin is not known.
type FieldError struct {
	// Field is the path of the value, for example "handlers.MyPlugin".
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Err.Error() }

func (e *FieldError) Unwrap() error { return e.Err }

// Error is an error in one value, with the origin of the value.
type Error struct {
	Origin Origin
	Err    error
}

func (e *Error) Error() string {
	if e.Origin == defaultOrigin {
		return e.Err.Error() // it has the path of the value
	}
	return fmt.Sprintf("%s: %v", e.Origin, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Errors are all errors of a configuration, sorted by file and position.
type Errors []*Error

// Error returns one line for each error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, err := range e {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}

// with returns the union of e and others, sorted. Both checks find some errors: the one of each file and the one of the merged
// configuration.
func (e Errors) with(others Errors) Errors {
	for _, other := range others {
		if !slices.ContainsFunc(e, func(err *Error) bool { return err.Error() == other.Error() }) {
			e = append(e, other)
		}
	}
	e.Sort()
	return e
}

// Sort sorts the errors by file and position. The order of files is the order of their first errors.
func (e Errors) Sort() {
	rank := map[string]int{}
	for _, err := range e {
		if _, known := rank[err.Origin.file]; !known {
			rank[err.Origin.file] = len(rank)
		}
	}
	slices.SortStableFunc(e, func(a, b *Error) int {
		return cmp.Or(
			cmp.Compare(rank[a.Origin.file], rank[b.Origin.file]),
			cmp.Compare(a.Origin.line, b.Origin.line),
			cmp.Compare(a.Origin.column, b.Origin.column),
		)
	})
}
