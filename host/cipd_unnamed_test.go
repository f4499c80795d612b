//go:build unix

package host

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestCIPDPluginThatIsNotNamed: a plugin of CIPD that is launched by the documented functions, which say no protocol, is told apart at
// its handshake, and the error says what to name.
func TestCIPDPluginThatIsNotNamed(t *testing.T) {
	t.Setenv(modeEnv, "cipd")
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	h := &Host{}
	initialize(t, h)
	a := NewAdmissionPlugin(t.Context(), h, []string{os.Args[0]})
	t.Cleanup(func() { a.Close(t.Context()) })
	err := a.CheckAdmission(filePin("ok")).Wait(t.Context())
	if err == nil || !strings.Contains(err.Error(), `a plugin of CIPD needs the protocol "cipd"`) {
		t.Errorf("the check says %v", err)
	}
}

// TestLaunchedCIPDPluginThatIsNotNamed: so is one that is launched by LaunchPlugin, whose error is that of its process all the same. Of a
// plugin that has called its host, or that nobody launched by that function, nothing is guessed.
func TestLaunchedCIPDPluginThatIsNotNamed(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	h := &Host{}
	initialize(t, h)
	const advice = `before it called its host; a plugin of CIPD needs the protocol "cipd"`
	ended := func(p *PluginProcess, err error) error {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		<-p.Done()
		return p.Err()
	}
	t.Setenv(modeEnv, "cipd")
	err := ended(h.LaunchPlugin(t.Context(), []string{os.Args[0]}, nil))
	if _, isExit := errors.AsType[*exec.ExitError](err); !isExit || !strings.Contains(err.Error(), advice) {
		t.Errorf("the plugin of CIPD ended with %v", err)
	}
	if err := ended(h.Launch(t.Context(), Spec{Args: []string{os.Args[0]}})); err == nil || strings.Contains(err.Error(), advice) {
		t.Errorf("launched with a Spec it ended with %v", err)
	}
	t.Setenv(modeEnv, "call and fail")
	if err := ended(h.LaunchPlugin(t.Context(), []string{os.Args[0]}, nil)); err == nil || strings.Contains(err.Error(), advice) {
		t.Errorf("one that called its host: %v", err)
	}
	if err := ended(h.LaunchPlugin(t.Context(), []string{"true"}, nil)); err != ErrTerminated { //nolint:errorlint // as documented
		t.Errorf("one that ended well: %v", err)
	}
}
