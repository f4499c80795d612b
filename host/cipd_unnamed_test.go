//go:build unix

package host

import (
	"os"
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
