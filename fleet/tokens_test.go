package fleet

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
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

// TestHostileBase: a node that writes the greatest base that is believed does not bring the others' tokens back when etcd is restored then:
// who knows of it raises it further, and who does not know waits until somebody has looked at it.
func TestHostileBase(t *testing.T) {
	t.Parallel()
	kv := func(n int64) []*mvccpb.KeyValue {
		return []*mvccpb.KeyValue{{Key: []byte("k"), Value: []byte(fmt.Sprint(n))}}
	}
	var a, b, fresh ledger
	for _, l := range []*ledger{&a, &b} {
		kept, strange := l.baseIn(kv(maxBase))
		if base, back := l.see(1000, kept); base != maxBase || back || strange != nil {
			t.Fatalf("base %d, %v, %v", base, back, strange)
		}
	}
	raised, back := a.see(10, 0) // restored
	if raised != maxBase+1000 || !back {
		t.Errorf("raised to %d, %v", raised, back)
	}
	kept, strange := b.baseIn(kv(raised))
	if base, _ := b.see(11, kept); base < raised || strange != nil {
		t.Errorf("another that knows has base %d, %v", base, strange)
	}
	if kept, strange := fresh.baseIn(kv(raised)); kept != 0 || strange == nil {
		t.Errorf("one that knows nothing takes %d, %v", kept, strange)
	}
	for _, never := range []int64{math.MaxInt64, -1, maxBase + maxAbove + 1} {
		for _, l := range []*ledger{&b, &fresh} {
			if kept, strange := l.baseIn(kv(never)); kept != 0 || strange != nil {
				t.Errorf("%d is taken as %d, %v", never, kept, strange)
			}
		}
	}
}
