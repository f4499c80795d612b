// Package peerauth connects to the endpoints of plugins and checks the process at the other end. The check of the path when the plugin
// announces it is not enough: a user who can write to the directory can replace the socket later, and the host connects with its own
// rights.
package peerauth

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Dial connects to an endpoint of a plugin. It returns a [*trust.Refusal] if the process that listens there must not serve the plugin. A
// nil judge permits every process.
func Dial(ctx context.Context, judge *trustjudge.Judge, in *plugin.Instance, path string) (net.Conn, error) {
	conn, err := sock.DialKnown(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := Check(judge, in, path, conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return sock.Plain(conn), nil
}

// ByUser connects to a socket. It returns an error if the process that listens on it runs as another user.
func ByUser(ctx context.Context, path string, uid uint32) (*net.UnixConn, error) {
	conn, err := sock.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	if _, err := OfUser(conn, path, uid); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// OfUser returns the process that listens on the socket at path, to which conn is connected. It returns an error if the process runs as
// another user.
func OfUser(conn *net.UnixConn, path string, uid uint32) (sock.Credentials, error) {
	peer, err := sock.PeerOf(conn)
	if err == nil && peer.UID != uid {
		err = fmt.Errorf("user %d listens on %s, and the plugin runs as user %d: it must serve its socket itself", peer.UID, path, uid)
	}
	return peer, err
}

// Check returns an error if a connection must not be used for an instance. A nil instance has no account and is not checked. A connection
// that is not one to a Unix socket was made by the host itself, for example for another protocol, and is permitted only for plugins of root
// and of the host's user.
func Check(judge *trustjudge.Judge, in *plugin.Instance, path string, conn net.Conn) error {
	if judge == nil || in == nil || !in.Account.Known {
		return nil
	}
	known, ok := socketOf(conn)
	if !ok {
		return judge.Own(in.Type, path, in.Account)
	}
	uid, err := sock.UserOf(known.UnixConn)
	if err != nil {
		return err
	}
	err = judge.Endpoint(in.Type, path, in.Account, uid)
	if err != nil && judge.Privileged(uid) && known.Socket.ID == in.Socket && !in.Socket.IsZero() {
		return nil // root listens on the plugin's registration socket for it, as with socket activation
	}
	return err
}

// socketOf returns the connection to a Unix socket that conn is, or that a TLS connection uses. Only a [sock.Conn] has the identity of the
// socket.
func socketOf(conn net.Conn) (known sock.Conn, ok bool) {
	if over, is := conn.(interface{ NetConn() net.Conn }); is {
		conn = over.NetConn()
	}
	switch conn := conn.(type) {
	case sock.Conn:
		return conn, true
	case *net.UnixConn:
		return sock.Conn{UnixConn: conn}, true
	}
	return sock.Conn{}, false
}
