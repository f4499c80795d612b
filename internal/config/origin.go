package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Origin says where a value comes from.
type Origin struct {
	// source is "environment variable NAME", "flag --name" or "default"; empty for a file.
	source string
	// file is the path of a file; empty for any other source.
	file string
	// line and column are the position in the file, from 1; zero where it is not known.
	line, column int
}

// Default is the origin of a value that nobody gave.
var Default = Origin{source: "default"}

// IsFile says whether the value was read from a file.
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

// FieldError reports what is wrong with one part of a configuration, wherever it comes from.
type FieldError struct {
	// Field is the path of the part, for example "handlers.MyPlugin".
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Err.Error() }

func (e *FieldError) Unwrap() error { return e.Err }

// Error says what is wrong with one value.
type Error struct {
	Origin Origin
	Err    error
}

func (e *Error) Error() string {
	if e.Origin == Default {
		return e.Err.Error() // which names the value that nobody gave
	}
	return fmt.Sprintf("%s: %v", e.Origin, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Errors are all errors of a configuration, in the order of the files and of the lines in each.
type Errors []*Error

// Error returns one line for each error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, err := range e {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}

// with returns e and those of others that it does not have, sorted: a file is checked on its own and again as a part of the whole.
func (e Errors) with(others Errors) Errors {
	for _, other := range others {
		if !slices.ContainsFunc(e, func(err *Error) bool { return err.Error() == other.Error() }) {
			e = append(e, other)
		}
	}
	e.Sort()
	return e
}

// Sort puts the errors of each file in the order of their positions; files stay in the order in which they occur first.
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
