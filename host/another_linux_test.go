package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// TestSocketOfAnotherHost reproduces PAINS 193: the socket that another host has made for its plugin stays when a plugin is launched at the
// same path, is known to serve, or ends.
func TestSocketOfAnotherHost(t *testing.T) {
	h := newHost(t)
	spec := self("polite")
	spec.PluginSocket = filepath.Join(shortDir(t), "p.sock")
	others := func() (made *sock.Made, stays func(when string)) {
		t.Helper()
		made, err := sock.Make(spec.PluginSocket)
		if err == nil {
			err = made.Bind()
		}
		if err != nil {
			t.Fatal(err)
		}
		want := made.ID()
		return made, func(when string) {
			t.Helper()
			if got, err := sock.Stat(made.Path); err != nil || got.ID != want {
				t.Errorf("%s, the socket of the other host is %+v, %v", when, got, err)
			}
		}
	}
	made, stays := others()
	if _, err := h.Launch(t.Context(), spec); !errors.Is(err, sock.ErrInUse) {
		t.Errorf("the launch gives %v, want %v", err, sock.ErrInUse)
	}
	stays("after the launch")
	if err := errors.Join(made.Remove(), made.File.Close()); err != nil {
		t.Fatal(err)
	}
	p := launch(t, h, spec)
	if err := os.Remove(made.Path); err != nil { // the plugin does not take it
		t.Fatal(err)
	}
	made, stays = others()
	defer made.File.Close()
	p.MarkRegistered()
	stays("when the plugin is known")
	p.Terminate(context.Background())
	stays("after the end of the plugin")
}
