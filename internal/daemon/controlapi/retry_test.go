package controlapi

import (
	"strings"
	"testing"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestRetryAndReleaseSayWhy checks the errors of requests that cannot be fulfilled.
func TestRetryAndReleaseSayWhy(t *testing.T) {
	ctx := t.Context()
	none := serveTo(t, &recorded{})
	some := serveTo(t, &recorded{plugins: []plugin.Status{{Type: "T", Name: "foo"}}})
	_, unknown := none.RetryPlugin(ctx, &patchbayv1.RetryPluginRequest{Type: "T", Name: "fooo"})
	_, asleep := some.RetryPlugin(ctx, &patchbayv1.RetryPluginRequest{Type: "T", Name: "foo"})
	_, empty := some.RetryPlugin(ctx, &patchbayv1.RetryPluginRequest{Type: "T"})
	_, free := some.ReleaseName(ctx, &patchbayv1.ReleaseNameRequest{Type: "T", Name: "foo"})
	_, full := some.ReleaseName(ctx, &patchbayv1.ReleaseNameRequest{Type: "T", Name: "kept"})
	_, typeless := some.ReleaseName(ctx, &patchbayv1.ReleaseNameRequest{Name: "kept"})
	for _, c := range []struct {
		err  error
		code connect.Code
		text string
	}{
		{unknown, connect.CodeNotFound, "no such plugin is known"},
		{asleep, connect.CodeFailedPrecondition, "nothing of it is waiting for another attempt: T/foo is asleep"},
		{empty, connect.CodeInvalidArgument, "the request names no plugin"},
		{free, connect.CodeFailedPrecondition, "the name is not reserved"},
		{full, connect.CodeInternal, "the disk is full"},
		{typeless, connect.CodeNotFound, "has no plugin of this name; a plugin that registered by itself is named TYPE/NAME"},
	} {
		if connect.CodeOf(c.err) != c.code || !strings.Contains(c.err.Error(), c.text) {
			t.Errorf("got %v, want %v: %s", c.err, c.code, c.text)
		}
	}
}

// TestReservationIsShown checks that the error for a plugin that has exited names the user for whom the name is reserved.
func TestReservationIsShown(t *testing.T) {
	_, err := serveTo(t, &recorded{}).GetPlugin(t.Context(), &patchbayv1.GetPluginRequest{Type: "T", Name: "kept"})
	const want = "no such plugin is known; the name is reserved for user 60001, whose plugin had it last, until 1970-01-01T00:00:00Z, or until"
	if connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
}
