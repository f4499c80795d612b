package access

import (
	"context"
	"fmt"
	"path"
	"slices"
	"sync"
)

// Rules holds rules that can change while calls are in progress. A change cancels the calls that the new rules deny. The methods are safe
// for concurrent use.
type Rules[T any] struct {
	mu    sync.Mutex
	rules T
	calls map[*admitted[T]]bool
}

type admitted[T any] struct {
	denied func(T) error
	end    context.CancelCauseFunc
}

// NewRules returns a Rules with the given rules.
func NewRules[T any](rules T) *Rules[T] {
	return &Rules[T]{rules: rules, calls: map[*admitted[T]]bool{}}
}

// Current returns the rules that are in force.
func (r *Rules[T]) Current() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rules
}

// Replace replaces the rules, and cancels the calls that the new rules deny.
func (r *Rules[T]) Replace(rules T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = rules
	r.recheck()
}

// Recheck cancels the calls that are denied now although the rules have not changed, for example because a certificate has expired.
func (r *Rules[T]) Recheck() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recheck()
}

// recheck cancels the calls that are denied. mu is held.
func (r *Rules[T]) recheck() {
	for call := range r.calls {
		if err := call.denied(r.rules); err != nil {
			call.end(err)
		}
	}
}

// Admit registers a call until release is called, or returns the error of denied. If denied returns an error later, end is called with it.
func (r *Rules[T]) Admit(denied func(T) error, end context.CancelCauseFunc) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := denied(r.rules); err != nil {
		return nil, err
	}
	call := &admitted[T]{denied, end}
	r.calls[call] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.calls, call)
	}, nil
}

// ValidatePatterns returns an error if the patterns under a key of a rule are empty or malformed.
func ValidatePatterns(key string, patterns ...string) error {
	if len(patterns) == 0 || slices.Contains(patterns, "") {
		return fmt.Errorf(`%s is empty and would allow nothing: name what is allowed, or "*" for everything`, key)
	}
	for _, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("%s: %q is not a valid pattern: %w", key, pattern, err)
		}
	}
	return nil
}

// MatchAny reports whether one of the patterns is "*" or matches a text as [path.Match] does.
func MatchAny(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, err := path.Match(pattern, text)
		return pattern == "*" || err == nil && matched
	})
}
