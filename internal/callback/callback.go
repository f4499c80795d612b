// Package callback calls functions that users of a package supply, and turns a panic or a [runtime.Goexit] in them into an error. The
// caller can continue, so no lock stays held, and no process or plugin is forgotten.
package callback

import (
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Error is the error of a function that did not return.
type Error struct {
	// Panic is what it panicked with; nil if it ended its goroutine, as [runtime.Goexit] and the FailNow of a test do.
	Panic any
	// Stack is where it panicked.
	Stack string
}

func (e *Error) Error() string {
	if e.Panic == nil {
		return "it ended its goroutine instead of returning"
	}
	return fmt.Sprintf("it panicked: %v", e.Panic)
}

// Call calls a function in a goroutine of its own, and returns its error, or an [*Error] if it does not return.
func Call(do func() error) (err error) {
	done := make(chan struct{})
	err = &Error{}
	go func() {
		defer close(done)
		err = Recover(do)
	}()
	<-done
	return err
}

// Recover calls a function in this goroutine, and returns its error, or an [*Error] if it panics.
func Recover(do func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Error{Panic: v, Stack: string(debug.Stack())}
		}
	}()
	return do()
}

// Observer returns a function that calls an observer and logs, unless log is nil, if that does not return. It is nil if the observer is.
func Observer[T any](log *slog.Logger, name string, observe func(T)) func(T) {
	if observe == nil {
		return nil
	}
	return func(value T) {
		err := Call(func() error {
			observe(value)
			return nil
		})
		if err != nil && log != nil {
			log.Error("an observer did not return", "observer", name, "error", err)
		}
	}
}
