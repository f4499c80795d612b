package fleet_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"
)

// lines keeps what a program writes.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// await waits until something has been written.
func (l *lines) await(t testing.TB, want string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("written so far:\n%s", l)
		}
	}()
	eventually(t, "a line with "+want, func() bool { return strings.Contains(l.String(), want) })
}
