// Package callback calls functions that users of a package supply, and returns an error if they panic or call [runtime.Goexit]. So the
// caller can release its locks and other resources.
package callback

import (
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Error is the error of a function that did not return.
type Error struct {
	// Panic is the value of the panic; nil if the function ended its goroutine with [runtime.Goexit], as FailNow of a test does.
	Panic any
	// Stack is the stack trace of the panic.
	Stack string
}

func (e *Error) Error() string {
	if e.Panic == nil {
		return "it ended its goroutine instead of returning"
	}
	return fmt.Sprintf("it panicked: %v", e.Panic)
}

// Call calls a function in a new goroutine and waits for it. It returns the function's error, or an [*Error] if it does not return.
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

// Recover calls a function in the current goroutine. It returns the function's error, or an [*Error] if it panics.
func Recover(do func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Error{Panic: v, Stack: string(debug.Stack())}
		}
	}()
	return do()
}

// Observer returns a function that calls observe with [Call], and logs its panics unless log is nil. It returns nil if observe is nil.
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
