package admission_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk"
	"github.com/patchbay-dev/patchbay/sdk/admission"
)

// TestRefuses checks that Serve refuses what cannot work before it looks for a host.
func TestRefuses(t *testing.T) {
	admit := func(context.Context, plugin.Pin, admission.Metadata) error { return nil }
	for name, err := range map[string]error{
		"no check":               admission.Serve(t.Context(), nil),
		"no concurrency":         admission.Serve(t.Context(), admit, admission.WithConcurrency(0)),
		"a negative concurrency": admission.Serve(t.Context(), admit, admission.WithConcurrency(-1)),
		"a nil option":           admission.Serve(t.Context(), admit, nil),
		"a version of no text":   admission.Serve(t.Context(), admit, admission.WithVersion("a\x1b")),
		"a long version":         admission.Serve(t.Context(), admit, admission.WithVersion(strings.Repeat("v", 1<<20))),
	} {
		if err == nil || errors.Is(err, sdk.ErrNotLaunched) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if err := admission.Serve(t.Context(), admit); !errors.Is(err, sdk.ErrNotLaunched) {
		t.Errorf("without a host: %v", err)
	}
}

// rude is an error whose text cannot be had.
type rude struct{}

func (rude) Error() string { panic("rude") }

// TestCallbacks checks that checks which panic or end their goroutine refuse their package, and that as many others as before run.
func TestCallbacks(t *testing.T) {
	for want, fail := range map[string]func() error{
		"panicked: oops":      func() error { panic("oops") },
		"ended its goroutine": func() error { runtime.Goexit(); return nil },
		"panicked: rude":      func() error { return rude{} },
	} {
		ctx, end := launch(t, func(stream admitStream) error {
			answers, err := ask(stream, 3, 3)
			for _, r := range answers {
				if (r.Code == int32(codes.OK)) != (r.Id == 3) || r.Id != 3 && !strings.Contains(r.Message, want) {
					t.Errorf("%s: the answer is %v", want, r)
				}
			}
			return errors.Join(err, status.Error(codes.Aborted, ""))
		})
		err := admission.Serve(ctx, func(_ context.Context, pin plugin.Pin, _ admission.Metadata) error {
			if pin.PackageName == "p3" {
				return nil
			}
			return fail()
		}, admission.WithConcurrency(1))
		end()
		if err != nil {
			t.Error(err)
		}
	}
	ctx, _ := launch(t, func(stream admitStream) error { <-stream.Context().Done(); return nil })
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := admission.Serve(ended, func(context.Context, plugin.Pin, admission.Metadata) error { return nil }); err != nil {
		t.Errorf("with a context that has ended: %v", err)
	}
}
