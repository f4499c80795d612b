// Package fleet shares the plugins of many nodes through etcd: a [Publisher] writes the plugins of one node, and a [Reader] lists and
// watches those of all nodes.
//
// A [Publisher] never makes its node wait. If etcd is slow, unavailable, full, compacted, restored from a backup or replaced,
// [Publisher.Condition] says so and the fleet sees the node's changes late; nothing else is affected. The Publisher recovers on its own,
// with random delays, so that many nodes do not come back at once. An idle node costs etcd one lease renewal every few seconds.
//
// A Reader needs one list and one watch on etcd, however many subscribers it has. They see every change exactly once, across lost
// connections, compactions and restored backups. A dead node stays visible as unreachable until its retention expires.
//
// docs/adr/0012-fleet.md explains the keys and leases. The package is not a general-purpose registry on etcd.
package fleet

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
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
	"github.com/patchbay-dev/patchbay/internal/regular"
)

// Etcd says how to reach etcd.
type Etcd struct {
	// Endpoints are the URLs of the members, for example https://10.0.0.1:2379; at least one.
	Endpoints []string
	// CA is a file with the certificates, in PEM, that sign those of etcd; empty for those that the system trusts. It is read once.
	CA string
	// Cert and Key are files with the certificate of this client and its key, in PEM; empty for none. They are read again when they have
	// changed, for every connection that is made from then on.
	Cert, Key string
	// ServerName is the name in the certificates of etcd, if that is not the host of the endpoint.
	ServerName string
	// User and PasswordFile are for etcd's own users; the file has the password in its first line and is read for each connection. Etcd hashes
	// the password for each connection and stream, which is expensive: with many nodes, use certificates, whose common name is the user.
	User, PasswordFile string
	// Timeout bounds one request (default 5 s).
	Timeout time.Duration
}

const defaultTimeout = 5 * time.Second

// Validate checks the configuration without reading files. The error names the first setting that is missing, malformed or contradicts
// another.
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
			return fmt.Errorf("etcd endpoint %q is no URL: write it as https://HOST:PORT or http://HOST:PORT", endpoint)
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

// Cluster is an etcd cluster to which a [Publisher] and a [Reader] connect. It has no connections itself: each of them has one at a time,
// to one member, and switches to another member when that fails. A Cluster is safe for concurrent use.
type Cluster struct {
	config  Etcd
	pair    *loaded[*tls.Certificate] // nil for no certificate
	tls     *tls.Config               // nil for none
	options []grpc.DialOption
}

// Timeout bounds one request.
func (c *Cluster) Timeout() time.Duration { return c.config.Timeout }

// Connect returns a cluster. It neither blocks nor connects: an error says that the configuration or a file is wrong. The options are added
// to those of each connection.
func Connect(e Etcd, options ...grpc.DialOption) (*Cluster, error) {
	e.Timeout = cmp.Or(e.Timeout, defaultTimeout)
	err := e.Validate()
	c := &Cluster{config: e, options: options}
	if err == nil {
		c.tls, c.pair, err = e.tls()
	}
	if err == nil && e.User != "" {
		_, err = e.password()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot use etcd: %w", err)
	}
	return c, nil
}

// Client returns a client for other uses of the cluster, for example elections. It has one connection, to one member: that with this
// number, modulo the number of members. Its context ends when the connection cannot be made or is lost, with the reason as its cause. So
// everything that the client reads is from one history of etcd: a cluster cannot be restored or replaced without ending its connections.
// With a user, Client requests a token, and blocks until it has one or fails. Requests that open a connection of their own, such as Status,
// must not be made with it. The caller closes the client.
func (c *Cluster) Client(member int) (*clientv3.Client, error) {
	client, err := c.client(context.Background(), member, 0)
	if err != nil {
		err = fmt.Errorf("cannot use etcd: %w", Explain(err))
	}
	return client, err
}

// client is Client with a context for connecting. Attempts is how often a request that etcd answers with an error is made; zero for the
// default of etcd's client.
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
		err = context.Cause(life) // which canceled it
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
func (c *Cluster) Certificate() Certificate {
	if c.pair == nil {
		return Certificate{}
	}
	return certificateIn(c.pair)
}

// tls returns nil if the endpoints have no TLS, and a nil pair if there is no client certificate.
func (e Etcd) tls() (config *tls.Config, pair *loaded[*tls.Certificate], err error) {
	if !strings.HasPrefix(e.Endpoints[0], "https://") {
		return nil, nil, nil
	}
	config = &tls.Config{MinVersion: tls.VersionTLS13, ServerName: e.ServerName}
	if e.CA != "" {
		if config.RootCAs, err = readCA(e.CA); err != nil {
			return nil, nil, err
		}
	}
	if e.Cert != "" {
		pair = keyPair(e.Cert, e.Key)
		if _, err := pair.get(); err != nil {
			return nil, nil, err
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.get() }
	}
	return config, pair, nil
}

const (
	layoutVersion = "v1" // part of every key, so that there can be another layout
	maxName       = 253  // bytes of the name of a node and of a namespace, as of a host name
)

// Space says where in etcd a fleet is kept. Fleets in different spaces do not see each other.
type Space struct {
	// Prefix begins every key (default /patchbay).
	Prefix string
	// Namespace separates fleets with one prefix (default "default"). It has letters, digits, ".", "-" and "_" only.
	Namespace string
}

// Validate returns an error if the namespace has characters that are not allowed or is too long.
func (s Space) Validate() error {
	return validateName("namespace", cmp.Or(s.Namespace, "default"))
}

// Base returns the prefix of all keys of the space; it ends with a slash.
func (s Space) Base() string {
	return strings.TrimRight(cmp.Or(s.Prefix, "/patchbay"), "/") + "/" + cmp.Or(s.Namespace, "default") + "/" + layoutVersion + "/"
}

// NodeRange returns the range of keys that belong to one node: all that begin with it. Its daemon needs to read and write these;
// docs/how-to/fleet.md has the whole role of a node.
func (s Space) NodeRange(node string) string { return s.nodes() + node + "/" }
func (s Space) nodes() string                { return s.Base() + "nodes/" }

// SettingsKey returns the key in which a node keeps its settings. No other node needs to write it.
func (s Space) SettingsKey(node string) string { return s.Base() + "settings/" + node }

// ValidateNode returns an error if a name cannot be that of a node: it is empty or too long, or has characters other than ASCII letters,
// digits, ".", "-" and "_".
func ValidateNode(name string) error { return validateName("node name", name) }

func validateName(what, name string) error {
	var problem string
	strange := strings.IndexFunc(name, isStrange)
	switch {
	case name == "":
		problem = "it is empty: give it one"
	case len(name) > maxName:
		problem = fmt.Sprintf("it has %d bytes: use at most %d", len(name), maxName)
	case strings.Trim(name, ".") == "":
		problem = "it has dots only: use letters and digits too"
	case strange >= 0:
		problem = fmt.Sprintf(`it has the character %q: use letters, digits, ".", "-" and "_"`, []rune(name[strange:])[0])
	default:
		return nil
	}
	return fmt.Errorf("%s %q: %s", what, name, problem)
}

func isStrange(r rune) bool {
	return (r < 'a' || 'z' < r) && (r < 'A' || 'Z' < r) && (r < '0' || '9' < r) && !strings.ContainsRune(".-_", r)
}

// Member is what [Cluster.Check] found out about one member of etcd.
type Member struct {
	// Endpoint is its URL, as it was configured.
	Endpoint string
	// Err says why the fleet cannot be read there, and what to do; nil if it can.
	Err error
	// Cluster identifies the cluster to which the member belongs; zero if it did not answer.
	Cluster uint64
}

// Check tries all members at once and returns them in the order in which they were configured: it connects, as the user if there is one,
// and counts the keys of a space, for which the member needs a leader. It changes nothing and blocks for at most the timeout of one
// request, or until ctx ends.
func (c *Cluster) Check(ctx context.Context, s Space) []Member {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	members := make([]Member, len(c.config.Endpoints))
	var checking sync.WaitGroup
	for i, endpoint := range c.config.Endpoints {
		checking.Go(func() { members[i] = c.check(ctx, i, s); members[i].Endpoint = endpoint })
	}
	checking.Wait()
	return members
}

func (c *Cluster) check(ctx context.Context, member int, s Space) Member {
	store, err := (&clusterDialer{c, member}).dial(ctx, c.config.Timeout)
	if err != nil {
		return Member{Err: Explain(err)}
	}
	defer store.close()
	found, err := store.get(ctx, s.nodes(), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return Member{Err: Explain(err)}
	}
	return Member{Cluster: found.Header.GetClusterId()}
}

// ErrNoNode says that etcd has no record of a node.
var ErrNoNode = errors.New("the fleet has no such node")

var errNodeThere = errors.New("the node is still running; stop its daemon or, if that was killed, wait until its presence expires")

const maxLabels, maxLabel = 64, 128 // of a node, and the bytes of a key or a value

// ValidateLabels returns an error if labels cannot be those of a node: there may be at most 64, whose keys and values have at most 128
// letters, digits, ".", "-", "_" and "/". A value may be empty.
func ValidateLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("there are %d labels: use at most %d", len(labels), maxLabels)
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		for _, text := range []string{key, labels[key]} {
			if strings.ContainsFunc(text, func(r rune) bool { return isStrange(r) && r != '/' }) || len(text) > maxLabel || key == "" {
				return fmt.Errorf(`label %q with value %q: use letters, digits, ".", "-", "_" and "/", at most %d, and a key that is not empty`,
					key, labels[key], maxLabel)
			}
		}
	}
	return nil
}

// Drain steers calls that may go to any node away from this one, and makes it give up its locks, until [Cluster.Uncordon], also across
// restarts of its daemon. by is the name of the node on which that was requested. The error is
// [ErrNoNode] if etcd has no record of the node.
func (c *Cluster) Drain(ctx context.Context, s Space, node, by string) error {
	value, err := deterministic.Marshal(&fleetv1.Cordon{Since: timestamp(time.Now()), By: valid(by)})
	if err != nil {
		return err
	}
	return c.operate(ctx, "drain", node, func(to store) error {
		return c.onNode(ctx, to, s, node, nil, clientv3.OpPut(s.NodeRange(node)+cordonKey, string(value)))
	})
}

// Uncordon undoes Drain. It is not an error if the node is not drained, or does not exist.
func (c *Cluster) Uncordon(ctx context.Context, s Space, node string) error {
	return c.operate(ctx, "uncordon", node, func(to store) error {
		_, err := to.commit(ctx, nil, []clientv3.Op{clientv3.OpDelete(s.NodeRange(node) + cordonKey)})
		return err
	})
}

// Forget removes a node that is gone from etcd, before its retention expires. It fails while the node is present, and with [ErrNoNode] if
// etcd has no record of it. Its names in the index of plugins, which lead nowhere then, stay until its retention expires.
func (c *Cluster) Forget(ctx context.Context, s Space, node string) error {
	return c.operate(ctx, "forget", node, func(to store) error {
		gone := clientv3.Compare(clientv3.CreateRevision(s.NodeRange(node)+presenceKey), "=", 0)
		return c.onNode(ctx, to, s, node, []clientv3.Cmp{gone}, clientv3.OpDelete(s.NodeRange(node), clientv3.WithPrefix()))
	})
}

// onNode changes the keys of a node, under conditions, if etcd has any of it.
func (c *Cluster) onNode(ctx context.Context, to store, s Space, node string, conditions []clientv3.Cmp, then ...clientv3.Op) error {
	found, err := to.get(ctx, s.NodeRange(node), clientv3.WithPrefix(), clientv3.WithCountOnly())
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
	err := ValidateNode(node)
	if err == nil {
		err = c.try(ctx, do)
	}
	if err != nil {
		return fmt.Errorf("cannot %s node %s: %w", what, node, Explain(err))
	}
	return nil
}

// try calls do with one member of etcd after the other until it succeeds, or fails for a reason that another member would have too.
func (c *Cluster) try(ctx context.Context, do func(store) error) error {
	d := newDialer(c)
	_, err := attempt(ctx, d, func() (bool, error) {
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

// LockState is the state of a lock as recorded in etcd.
type LockState struct {
	Lock
	Node       string // that holds the lock; empty for none
	Token      int64  // the fencing token with which it does
	Candidates int    // the number of nodes that compete for it, including the holder
}

// Locks returns the locks that somebody holds or wants, ordered by type and name. The error says why etcd did not answer.
func (c *Cluster) Locks(ctx context.Context, s Space) ([]LockState, error) {
	var all Contenders
	err := c.try(ctx, func(from store) (err error) {
		all = Contenders{}
		_, err = readPages(ctx, from, s.contenders(), func(kv *mvccpb.KeyValue) { all.Put(s, kv) })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list the locks: %w", Explain(err))
	}
	var states []LockState
	for _, lock := range all.Locks() {
		node, _ := all.holder(lock)
		states = append(states, LockState{Lock: lock, Node: node, Token: all.First(lock).Token, Candidates: len(all.nodes(lock))})
	}
	return states, nil
}
