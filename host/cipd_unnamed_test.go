//go:build unix

package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// silentCIPD is a program with the name of CIPD's service in it. Like CIPD's own plugins, it is silent about its handshake and waits for the end
// of its standard input.
const silentCIPD = `#!/bin/sh
read -r handshake # then it would call /cipd.plugin.Host/Log
cat >/dev/null
echo "failed to read the handshake message" >&2
exit 1
`

// TestCIPDPluginThatIsNotNamed: a plugin of CIPD whose protocol is not named is refused before it runs, and the error says what to name.
func TestCIPDPluginThatIsNotNamed(t *testing.T) {
	program := filepath.Join(t.TempDir(), "admit")
	if err := os.WriteFile(program, []byte(silentCIPD), 0o700); err != nil {
		t.Fatal(err)
	}
	e := newEvents()
	h := &Host{Events: e.add}
	initialize(t, h)
	refused := func(err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), needsCIPD) {
			t.Errorf("got %v, want %s", err, needsCIPD)
		}
	}
	for _, protocol := range []Protocol{"", ProtocolPatchbay} {
		a := NewAdmission(t.Context(), h, Spec{Args: []string{program}, Protocol: protocol}, 0)
		t.Cleanup(func() { a.Close(t.Context()) })
		refused(a.CheckAdmission(filePin("ok")).Wait(t.Context()))
	}
	_, err := h.LaunchPlugin(t.Context(), []string{program}, nil)
	refused(err)
	if e.has(plugin.EventLaunched) {
		t.Error("it was launched")
	}
}

// behindScript returns a command line that runs the test binary through a program that has no names of services in it.
func behindScript(args ...string) []string {
	return append([]string{"/bin/sh", "-c", `exec "$0" "$@"`, os.Args[0]}, args...)
}

// TestUnseenCIPDPlugin: of one whose program does not show it, as behind a script, the check that it does not answer says so.
func TestUnseenCIPDPlugin(t *testing.T) {
	t.Setenv(modeEnv, "cipd")
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	h := &Host{}
	initialize(t, h)
	a := NewAdmission(t.Context(), h, Spec{Args: behindScript()}, time.Second)
	t.Cleanup(func() { a.Close(t.Context()) })
	err := a.CheckAdmission(filePin("ok")).Wait(t.Context())
	if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), needsCIPD) {
		t.Errorf("the check says %v", err)
	}
}

// TestLaunchedCIPDPluginThatIsNotNamed: so does the error of one that is launched by LaunchPlugin, when it is terminated. Of a plugin that has
// called its host, or that nobody launched by that function, nothing is guessed.
func TestLaunchedCIPDPluginThatIsNotNamed(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	h := &Host{}
	initialize(t, h)
	const advice = "before it called its host; " + needsCIPD
	t.Setenv(modeEnv, "cipd")
	p, err := h.LaunchPlugin(t.Context(), behindScript(), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = p.Terminate(t.Context())
	if _, isExit := errors.AsType[*exec.ExitError](err); !isExit || !strings.Contains(err.Error(), advice) {
		t.Errorf("the plugin of CIPD ended with %v", err)
	}
	if p, err = h.Launch(t.Context(), Spec{Args: behindScript()}); err != nil {
		t.Fatal(err)
	}
	err = p.Terminate(t.Context())
	if _, isExit := errors.AsType[*exec.ExitError](err); !isExit || strings.Contains(err.Error(), advice) {
		t.Errorf("launched with a Spec it ended with %v", err)
	}
	t.Setenv(modeEnv, "call and fail")
	if p, err = h.LaunchPlugin(t.Context(), behindScript(), nil); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := p.Err(); err == nil || strings.Contains(err.Error(), advice) {
		t.Errorf("one that called its host: %v", err)
	}
	if p, err = h.LaunchPlugin(t.Context(), []string{"true"}, nil); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := p.Err(); err != ErrTerminated { //nolint:errorlint // as documented
		t.Errorf("one that ended well: %v", err)
	}
}

// TestPatchbayPluginIsNotTakenForCIPD: the error of a plugin whose program has the names of Patchbay's services does not mention CIPD,
// however early the plugin ends, and although it never asks for checks.
func TestPatchbayPluginIsNotTakenForCIPD(t *testing.T) {
	unadvised := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) || strings.Contains(err.Error(), "CIPD") {
			t.Errorf("%s: %v", what, err)
		}
	}
	a, _ := newAdmissionOf(t, "exit", time.Minute, "5")
	unadvised("it ends early", ask(t, a, "x"), ErrCrashed)
	a, _ = newAdmission(t, time.Second, "silent")
	unadvised("it asks for nothing", ask(t, a, "x"), ErrTimeout)
	t.Setenv(modeEnv, "exit")
	p, err := a.host.LaunchPlugin(t.Context(), []string{os.Args[0], "5"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if _, isExit := errors.AsType[*exec.ExitError](p.Err()); !isExit {
		t.Errorf("it ended with %v", p.Err())
	}
	unadvised("LaunchPlugin", p.Err(), p.Err())
}

// TestProgramsAreScannedOnce: a host reads a program again only if it was replaced, and remembers few.
func TestProgramsAreScannedOnce(t *testing.T) {
	h, dir := new(Host), t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	program := write("0", "patchbay.plugin.v1.Host")
	for range 2 {
		if got := h.scan(program); !got.isPatchbay || got.isCIPD || len(h.scanned) != 1 {
			t.Errorf("%+v, %d remembered", got, len(h.scanned))
		}
	}
	write("0", "cipd.plugin.Host")
	if got := h.scan(program); got.isPatchbay || !got.isCIPD {
		t.Errorf("it was replaced: %+v", got)
	}
	for i := range 2 * maxScanned {
		h.scan(write(fmt.Sprint(i), "neither"))
	}
	if len(h.scanned) != maxScanned {
		t.Errorf("%d programs are remembered, want %d", len(h.scanned), maxScanned)
	}
}
