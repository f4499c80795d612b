package dynamicplugins_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// TestReplacing: callers wait while the instance that they would call goes, until there is another one, or none is to be waited for.
func TestReplacing(t *testing.T) {
	for name, test := range map[string]struct {
		goes string
		end  func(r *dynamicplugins.Store, over func()) error
		want error
	}{
		"Registered": {"1", func(r *dynamicplugins.Store, _ func()) error {
			return errors.Join(r.DeregisterPlugin("t", "n", "1"), r.RegisterPlugin(newInfo("t", "n", "2")))
		}, nil},
		"Beside": {"1", func(r *dynamicplugins.Store, _ func()) error { return r.RegisterPlugin(newInfo("t", "n", "2")) }, nil},
		"Over":   {"1", func(_ *dynamicplugins.Store, over func()) error { over(); return nil }, nil},
		"Gone": {"1", func(r *dynamicplugins.Store, over func()) error {
			defer over()
			return r.DeregisterPlugin("t", "n", "1")
		}, dynamicplugins.ErrNotFound},
		"Shutdown": {"1", func(r *dynamicplugins.Store, _ func()) error { r.Shutdown(); return nil }, dynamicplugins.ErrShutdown},
		"Another":  {"0", func(*dynamicplugins.Store, func()) error { return nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t, nil, nil)
			register(t, r, newInfo("t", "n", "0"))
			register(t, r, newInfo("t", "n", "1"))
			if test.goes == "1" {
				check(t, r.DeregisterPlugin("t", "n", "0"))
			}
			replacing, over := context.WithCancel(t.Context())
			defer over()
			r.Replacing(replacing, "t", "n", test.goes)
			got := make(chan error)
			go func() {
				_, err := r.Conn(t.Context(), "t", "n")
				got <- err
			}()
			select {
			case err := <-got:
				if test.goes == "1" || err != nil {
					t.Fatalf("nobody waits: %v", err)
				}
				return
			case <-time.After(20 * time.Millisecond):
			}
			check(t, test.end(r, over))
			if err := <-got; !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

// TestReplacingTakesLong: nobody waits longer than he wants to.
func TestReplacingTakesLong(t *testing.T) {
	r := open(t, nil, nil)
	register(t, r, newInfo("t", "n", "1"))
	r.Replacing(t.Context(), "t", "n", "1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := r.Conn(ctx, "t", "n")
	if !errors.Is(err, dynamicplugins.ErrNotConfirmed) || status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
	if err := r.AwaitReplaced(ctx, "t", "n"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if err := r.AwaitReplaced(t.Context(), "t", "other"); err != nil {
		t.Errorf("got %v for one that is not replaced", err)
	}
}
