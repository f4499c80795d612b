package fleet

import (
	"os"
	"path/filepath"
	"testing"
)

// TestLedger: the base is raised above all tokens when revisions go back, which is told once, and is remembered.
func TestLedger(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	l, err := openLedger(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		revision, kept, base int64
		back                 bool
	}{
		{100, 0, 0, false},
		{200, 0, 0, false},
		{200, 0, 0, false},
		{150, 0, 200, true},      // restored
		{151, 200, 200, false},   // written meanwhile
		{152, 1000, 1000, false}, // another node knew of greater tokens
		{90, 0, 1152, true},      // restored to before that was written
		{5_000_000, 0, 1152, false},
	} {
		if base, back := l.see(step.revision, step.kept); base != step.base || back != step.back {
			t.Errorf("step %d: base %d, back %v; want %d, %v", i, base, back, step.base, step.back)
		}
	}
	if err := l.keep(); err != nil {
		t.Fatal(err)
	}
	after, err := openLedger(file)
	if err != nil {
		t.Fatal(err)
	}
	if base, back := after.see(10, 0); base <= 5_000_000 || !back {
		t.Errorf("after a restart: base %d, back %v", base, back)
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openLedger(file); err == nil {
		t.Error("a file that cannot be read is passed over")
	}
}
