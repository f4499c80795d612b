// Package fleet shares the plugins of many nodes through etcd: a [Publisher] writes the plugins of one node, a [Reader] follows the plugins
// of all nodes, and a [Lookup] finds the plugins that are called. Package nodecall makes the calls. None of them blocks the node while etcd
// is unavailable.
//
// docs/adr/0012-fleet.md explains the keys and leases.
package fleet

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/fleet/certfile"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/regular"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// Etcd describes how to reach etcd, and which keys the fleet has there. It has the fields of config.Etcd, which can be converted to it.
type Etcd struct {
	Endpoints []string // the URLs of the members, for example https://10.0.0.1:2379; at least one
	CA        string   // a PEM file with the CA certificates for etcd; empty for those of the system
	// Cert and Key are files with the certificate of this client and its key, in PEM; empty for none. They are read again when they have
	// changed.
	Cert, Key  string
	ServerName string // the name in the certificates of etcd, if it is not the host of the endpoint
	// User and PasswordFile are for etcd's own users; the first line of the file is the password. Etcd hashes it for each connection, which
	// is expensive: with many nodes, use certificates, whose common name is the user.
	User, PasswordFile string
	Prefix, Namespace  string        // see [keys.Space]
	Timeout            time.Duration // the timeout of one request (default 5 s)
}

// Space returns the keys of the fleet.
func (e Etcd) Space() keys.Space { return keys.Space{Prefix: e.Prefix, Namespace: e.Namespace} }

const defaultTimeout = 5 * time.Second

// Validate returns an error for a setting that is missing, malformed or contradicts another. It reads no files.
func (e Etcd) Validate() error {
	if len(e.Endpoints) == 0 {
		return errors.New("there is no etcd endpoint: name at least one, for example https://10.0.0.1:2379")
	}
	secure := 0
	for _, endpoint := range e.Endpoints {
		scheme, address, ok := strings.Cut(endpoint, "://")
		host, port, err := net.SplitHostPort(address)
		_, noPort := strconv.ParseUint(port, 10, 16)
		switch {
		case !ok || err != nil || host == "" || noPort != nil || scheme != "http" && scheme != "https":
			return fmt.Errorf("etcd endpoint %q is not a URL: write it as https://HOST:PORT or http://HOST:PORT", endpoint)
		case scheme == "https":
			secure++
		}
	}
	switch {
	case e.Timeout < 0:
		return fmt.Errorf("the timeout of requests to etcd is negative: %v", e.Timeout)
	case secure > 0 && secure < len(e.Endpoints):
		return errors.New("some etcd endpoints have TLS and others do not: use https:// for all")
	case secure == 0 && cmp.Or(e.CA, e.Cert, e.Key, e.ServerName) != "":
		return errors.New("there are settings for TLS and no etcd endpoint uses it: write https:// for all")
	case (e.Cert == "") != (e.Key == ""):
		return errors.New("a client certificate needs its key: name both files, or neither")
	case (e.User == "") != (e.PasswordFile == ""):
		return errors.New("a user needs a password: name a user and the file with the password, or neither")
	}
	return nil
}

// Cluster is an etcd cluster. It has no connections itself: a [Publisher], [Reader] or [Lookup] is connected to one member at a time, and
// connects to another member if that fails. A Cluster is safe for concurrent use.
type Cluster struct {
	config  Etcd
	pair    *certfile.Files[*tls.Certificate] // nil for no certificate
	tls     *tls.Config                       // nil for none
	options []grpc.DialOption
	// dial connects to the member with this number. The timeout applies to dial and to each request.
	dial func(ctx context.Context, member int, timeout time.Duration) (store, error)
}

// Timeout returns the timeout of one request.
func (c *Cluster) Timeout() time.Duration { return c.config.Timeout }

// Space returns the space of the fleet.
func (c *Cluster) Space() keys.Space { return c.config.Space() }

// Connect returns a cluster. It does not connect: it returns an error only if the configuration or a file is invalid. The options are used
// for every connection.
func Connect(e Etcd, options ...grpc.DialOption) (*Cluster, error) {
	e.Timeout = cmp.Or(e.Timeout, defaultTimeout)
	err := e.Validate()
	c := &Cluster{config: e, options: options}
	c.dial = c.dialEtcd
	if err == nil && strings.HasPrefix(e.Endpoints[0], "https://") {
		c.tls, c.pair, err = certfile.Client(e.CA, e.Cert, e.Key, e.ServerName)
	}
	if err == nil && e.User != "" {
		_, err = e.password()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot use etcd: %w", err)
	}
	return c, nil
}

// Client returns a client with one connection, to the member with this number, modulo the number of members. Its context ends when the
// connection cannot be made or is lost; the cause is the reason. Everything that the client reads is therefore from one history of etcd: a
// cluster cannot be restored or replaced without ending its connections. Requests that open another connection, such as Status, must not be
// made with the client. The caller closes the client.
func (c *Cluster) Client(member int) (*clientv3.Client, error) {
	return c.client(context.Background(), member, 0)
}

// client is Client with a context for connecting. A request that etcd answers with an error is made attempts times; zero for the default.
func (c *Cluster) client(ctx context.Context, member int, attempts uint) (*clientv3.Client, error) {
	endpoint := c.config.Endpoints[member%len(c.config.Endpoints)]
	life, end := context.WithCancelCause(context.Background())
	defer context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })()
	fail := func(err error) { end(fmt.Errorf("%w: no connection to %s: %w", errUnreachable, endpoint, err)) }
	var dialed atomic.Bool
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		if dialed.Swap(true) {
			return nil, errLost
		}
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			fail(err)
			return nil, err
		}
		return endingConn{conn, fail}, nil
	}
	config := clientv3.Config{
		Endpoints: []string{endpoint}, DialTimeout: c.config.Timeout, DialKeepAliveTime: pingAfter, DialKeepAliveTimeout: pingTimeout,
		TLS: c.tls, Username: c.config.User, Logger: zap.NewNop(), Context: life, MaxUnaryRetries: attempts, MaxCallRecvMsgSize: maxMessage,
		DialOptions: append([]grpc.DialOption{grpc.WithContextDialer(dial)}, c.options...),
	}
	var err error
	if c.config.User != "" {
		if config.Password, err = c.config.password(); err != nil {
			return nil, err
		}
	}
	client, err := clientv3.New(config)
	if status.Code(err) == codes.Canceled || errors.Is(err, context.Canceled) {
		err = context.Cause(life) // the reason why it was canceled
	}
	return client, err
}

var (
	errUnreachable = errors.New("etcd cannot be reached")
	errLost        = errors.New("the connection was lost")
)

type endingConn struct {
	net.Conn
	end func(error)
}

func (c endingConn) Close() error {
	c.end(errLost)
	return c.Conn.Close()
}

func (e Etcd) password() (string, error) {
	text, err := regular.Read(e.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("cannot read the password: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line = strings.TrimRight(line, "\r"); line == "" {
		return "", fmt.Errorf("the first line of password file %s is empty: write the password there", e.PasswordFile)
	}
	return line, nil
}

// Certificate returns the certificate that is presented to etcd; zero for none.
func (c *Cluster) Certificate() certfile.Certificate {
	if c.pair == nil {
		return certfile.Certificate{}
	}
	return certfile.Of(c.pair)
}

// Member is the result of [Cluster.Check] for one member of etcd.
type Member struct {
	Endpoint string // as it was configured
	Err      error  // the reason why the fleet cannot be read there, and the remedy; nil if it can
	Cluster  uint64 // identifies the cluster of the member; zero if the member did not answer
}

// Check connects to all members and counts the keys of the fleet, for which a member needs a leader. It returns the members in the order in
// which they were configured. It blocks for at most the timeout of one request, or until ctx ends.
func (c *Cluster) Check(ctx context.Context) []Member {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	members := make([]Member, len(c.config.Endpoints))
	var checking sync.WaitGroup
	for i, endpoint := range c.config.Endpoints {
		checking.Go(func() { members[i] = c.check(ctx, i); members[i].Endpoint = endpoint })
	}
	checking.Wait()
	return members
}

func (c *Cluster) check(ctx context.Context, member int) Member {
	store, err := c.dial(ctx, member, c.config.Timeout)
	if err != nil {
		return Member{Err: Explain(err)}
	}
	defer store.close()
	found, err := store.get(ctx, c.Space().NodeSpace(), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return Member{Err: Explain(err)}
	}
	return Member{Cluster: found.Header.GetClusterId()}
}

// ErrNoNode is the error for a node of which etcd has no record.
var ErrNoNode = errors.New("the fleet has no such node")

var errNodeThere = errors.New("the node is still running; stop its daemon or, if that was killed, wait until its presence expires")

// Drain steers calls to any node away from this one, and makes it give up its locks, until [Cluster.Uncordon], across restarts of its
// daemon. by is the node on which that was requested. The error is [ErrNoNode] if etcd has no record of the node.
func (c *Cluster) Drain(ctx context.Context, node, by string) error {
	value, _ := deterministic.Marshal(&fleetv1.Cordon{Since: timestamp(time.Now()), By: untrusted.Valid(by)}) // fails for invalid text only
	return c.operate(ctx, "drain", node, func(to store) error {
		return c.onNode(ctx, to, node, nil, clientv3.OpPut(c.Space().NodeRange(node)+keys.Cordon, string(value)))
	})
}

// Uncordon undoes Drain. It does nothing if the node is not drained or does not exist.
func (c *Cluster) Uncordon(ctx context.Context, node string) error {
	return c.operate(ctx, "uncordon", node, func(to store) error {
		_, err := to.commit(ctx, nil, []clientv3.Op{clientv3.OpDelete(c.Space().NodeRange(node) + keys.Cordon)})
		return err
	})
}

// Forget removes a dead node from etcd before its retention expires. It fails while the node is present, and with [ErrNoNode] if etcd has
// no record of it. Its keys in the index stay until its retention expires; readers ignore them.
func (c *Cluster) Forget(ctx context.Context, node string) error {
	return c.operate(ctx, "forget", node, func(to store) error {
		all := c.Space().NodeRange(node)
		gone := clientv3.Compare(clientv3.CreateRevision(all+keys.Presence), "=", 0)
		return c.onNode(ctx, to, node, []clientv3.Cmp{gone}, clientv3.OpDelete(all, clientv3.WithPrefix()))
	})
}

// onNode changes the keys of a node if the conditions hold. The error is [ErrNoNode] if the node has no keys.
func (c *Cluster) onNode(ctx context.Context, to store, node string, conditions []clientv3.Cmp, then ...clientv3.Op) error {
	found, err := to.get(ctx, c.Space().NodeRange(node), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	if found.Count == 0 {
		return ErrNoNode
	}
	answer, err := to.commit(ctx, conditions, then)
	if err == nil && !answer.Succeeded {
		err = errNodeThere
	}
	return err
}

func (c *Cluster) operate(ctx context.Context, what, node string, do func(to store) error) error {
	err := keys.ValidateNode(node)
	if err == nil {
		err = c.try(ctx, do)
	}
	if err != nil {
		return fmt.Errorf("cannot %s node %s: %w", what, node, Explain(err))
	}
	return nil
}

// try calls do with one member of etcd after another, until it succeeds or fails with an error that other members would also return.
func (c *Cluster) try(ctx context.Context, do func(store) error) error {
	d := newDialer(c)
	_, err := d.attempt(ctx, func() (bool, error) {
		member, err := d.dial(ctx, c.config.Timeout)
		if err != nil {
			return false, err
		}
		defer member.close()
		err = do(member)
		return err == nil, err
	})
	return err
}

// Locks returns the locks that have contenders, ordered by type and name.
func (c *Cluster) Locks(ctx context.Context) ([]keys.LockState, error) {
	var all keys.Contenders
	err := c.try(ctx, func(from store) (err error) {
		all = keys.Contenders{}
		_, err = readPages(ctx, from, c.Space().ContenderSpace(), func(kv *mvccpb.KeyValue) { all.Put(c.Space(), kv) })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list the locks: %w", Explain(err))
	}
	return all.States(), nil
}
