package fleet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/stats"

	"github.com/patchbay-dev/patchbay/internal/regular"
)

// errWentBack says that etcd has revisions again that it had before.
var errWentBack = errors.New("etcd was restored or replaced; the node competes again, with greater tokens")

// bases returns what the keys begin with in which nodes keep the base of all tokens. Only the greatest counts.
func (s Space) bases() string { return s.elections() + "@base/" }

// maxBase is the greatest base that is believed of any node, so that tokens can still grow. A hostile node may write it. Then etcd may be
// restored, and those that know raise it above that: maxAbove further they are believed by those that know of almost as much, maxSkew less
// at most, and by nobody else, since who knows nothing cannot tell them from a node that lies.
const (
	maxBase          = math.MaxInt64 / 2
	maxAbove         = 1 << 55
	maxSkew          = 1 << 40
	errStrangeFormat = "key %s has a base of fencing tokens that was raised above what a node may claim, and this node does not know by " +
		"whom; find out, and delete the key if the node is hostile or no token was given with it"
)

// ledger is what a node knows of the tokens of all locks. A token is a base plus a revision of etcd. After a restore revisions come again;
// whoever notices raises the base above every token that it knows can have been given.
type ledger struct {
	file string // empty for none

	mu   sync.Mutex
	base int64
	mark int64 // the greatest sum of base and revision that was seen
	kept int64 // the mark in the file
}

// baseIn returns the greatest base in keys of [Space.bases] that is believed. Strange says that there is one that may be the base and is
// not believed: without it, tokens might go back.
func (l *ledger) baseIn(kvs []*mvccpb.KeyValue) (base int64, strange error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, kv := range kvs {
		n, err := strconv.ParseInt(string(kv.Value), 10, 64)
		switch {
		case err != nil || n > maxBase+maxAbove:
		case n <= maxBase || n <= l.mark+maxSkew:
			base = max(base, n)
		default:
			strange = fmt.Errorf(errStrangeFormat, kv.Key)
		}
	}
	return base, strange
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
		return nil, fmt.Errorf("cannot read the greatest fencing token: %w; mend or remove file %s", err, file)
	}
	l.kept = l.mark
	return l, nil
}

// see takes over what one linearizable answer of etcd says: its revision and the base that it keeps. It returns the base that counts, which
// has to be written if it is another one. Back says that revisions went back.
func (l *ledger) see(revision, kept int64) (base int64, back bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.base = max(l.base, kept)
	if back = l.base+revision < l.mark; back {
		l.base = l.mark
	}
	l.mark = max(l.mark, l.base+revision)
	return l.base, back
}

// known returns the greatest base that is known.
func (l *ledger) known() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.base
}

// keep writes the mark to the file, if it has changed.
func (l *ledger) keep() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == "" || l.kept == l.mark {
		return nil
	}
	if err := replaceFile(l.file, fmt.Sprintf("%d %d\n", l.base, l.mark)); err != nil {
		return fmt.Errorf("cannot keep the greatest fencing token: %w", err)
	}
	l.kept = l.mark
	return nil
}

// replaceFile has a file contain a text, whenever the machine stops.
func replaceFile(file, text string) error {
	temporary, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary.Name()) }() // after the rename there is none
	_, written := temporary.WriteString(text)
	if err := errors.Join(written, temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), file)
}

// learn reads the base that etcd keeps, and raises it if the node knows of a greater one.
func (e *Elector) learn(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	found, err := client.Get(clientv3.WithRequireLeader(ctx), e.config.Space.bases(), clientv3.WithPrefix())
	if err != nil {
		return err
	}
	kept, strange := e.ledger.baseIn(found.Kvs)
	if strange != nil {
		return strange
	}
	base, _ := e.ledger.see(found.Header.GetRevision(), kept)
	return errors.Join(e.raise(ctx, client, base, kept), e.ledger.keep())
}

// raise writes a base to etcd unless it is what etcd keeps.
func (e *Elector) raise(ctx context.Context, client *clientv3.Client, base, kept int64) error {
	if base == kept {
		return nil
	}
	e.log.Warn("fleet: etcd was restored or replaced, and fencing tokens grow from here on", "base", base)
	_, err := client.Put(clientv3.WithRequireLeader(ctx), e.config.Space.TokenBaseKey(e.config.Node), strconv.FormatInt(base, 10))
	return err
}

// connections notes when connections to etcd began. Etcd can have been restored behind each new one, and have forgotten a holder that does
// not know yet.
type connections struct {
	began chan struct{} // gets a value with each; nil for nobody

	mu   sync.Mutex
	last time.Time
}

// since returns when the last connection began.
func (c *connections) since() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// HandleConn implements stats.Handler. It is called before a connection is used.
func (c *connections) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, began := s.(*stats.ConnBegin); began {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.last = time.Now()
		tell(c.began)
	}
}

// TagConn implements stats.Handler.
func (c *connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// TagRPC implements stats.Handler.
func (c *connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (c *connections) HandleRPC(context.Context, stats.RPCStats) {}
