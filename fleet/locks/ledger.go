package locks

import (
	"errors"
	"fmt"
	"os"

	"github.com/patchbay-dev/patchbay/internal/regular"
)

// errWentBack means that etcd has revisions again that it had before.
var errWentBack = errors.New("etcd was restored or replaced; the node competes again, with greater tokens")

// ledger is what a node knows of the tokens of all locks. A token is a base plus a revision of etcd. After a restore revisions come again;
// a node that notices raises the base above every token that it knows can have been given.
type ledger struct {
	file string // empty for none
	base int64
	mark int64 // the greatest sum of base and revision that was seen
	kept int64 // the mark in the file
}

// openLedger reads what the node knew before it was restarted.
func openLedger(file string) (*ledger, error) {
	l := &ledger{file: file}
	if file == "" {
		return l, nil
	}
	text, err := regular.Read(file)
	if errors.Is(err, os.ErrNotExist) {
		return l, nil
	}
	if err == nil {
		_, err = fmt.Sscanf(string(text), "%d %d\n", &l.base, &l.mark)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the greatest fencing token: %w; fix or remove file %s", err, file)
	}
	l.kept = l.mark
	return l, nil
}

// see records one linearizable answer of etcd: its revision and the greatest base in it. It returns the base that counts, and reports
// whether revisions went back.
func (l *ledger) see(revision, base int64) (counts int64, back bool) {
	l.base = max(l.base, base)
	if back = l.base+revision < l.mark; back {
		l.base = l.mark
	}
	l.mark = max(l.mark, l.base+revision)
	return l.base, back
}

// keep writes the mark to the file, if it has changed.
func (l *ledger) keep() error {
	if l.file == "" || l.kept == l.mark {
		return nil
	}
	if err := regular.Replace(l.file, fmt.Sprintf("%d %d\n", l.base, l.mark)); err != nil {
		return fmt.Errorf("cannot keep the greatest fencing token: %w", err)
	}
	l.kept = l.mark
	return nil
}
