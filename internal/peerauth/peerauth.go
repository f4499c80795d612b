// Package peerauth connects to the endpoints of plugins. A host connects with its own rights and has others call there, so each connection
// is judged by the socket that it reached and by who listens: a path is judged when a plugin announces it too, but whoever can write to its
// directory can have it lead elsewhere afterwards.
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

// Dial connects to an endpoint of a plugin, and fails with a [*trust.Refusal] if the plugin may not speak for who listens there. A nil
// judge has no objections.
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

// ByUser connects to a socket, and returns the process that listens there. It returns an error if that is a process of another user.
func ByUser(ctx context.Context, path string, uid uint32) (*net.UnixConn, sock.Credentials, error) {
	conn, err := sock.Dial(ctx, path)
	if err != nil {
		return nil, sock.Credentials{}, err
	}
	peer, err := OfUser(conn, path, uid)
	if err != nil {
		return nil, sock.Credentials{}, errors.Join(err, conn.Close())
	}
	return conn, peer, nil
}

// OfUser returns the process that listens on the socket at path, to which conn leads. It returns an error if that is a process of another
// user.
func OfUser(conn *net.UnixConn, path string, uid uint32) (sock.Credentials, error) {
	peer, err := sock.PeerOf(conn)
	if err == nil && peer.UID != uid {
		err = fmt.Errorf("user %d listens on %s, and the plugin runs as user %d: it must serve its socket itself", peer.UID, path, uid)
	}
	return peer, err
}

// Check returns an error if a connection may not be used for the instance; a nil instance has no account and is not checked. A connection
// that does not lead to a Unix socket was made by the host itself, as for plugins of foreign protocols, and may be used only for plugins of
// root and of the host's user.
func Check(judge *trustjudge.Judge, in *plugin.Instance, path string, conn net.Conn) error {
	if judge == nil || in == nil || !in.Account.Known {
		return nil
	}
	known, ok := socketOf(conn)
	if !ok {
		return judge.Own(in.Type, path, in.Account)
	}
	peer, err := sock.PeerOf(known.UnixConn)
	if err != nil {
		return err
	}
	err = judge.Endpoint(in.Type, path, in.Account, peer.UID)
	if err != nil && judge.Privileged(peer.UID) && known.Socket.ID == in.Socket && !in.Socket.IsZero() {
		return nil // root listens on the plugin's registration socket for it, as with socket activation
	}
	return err
}

// socketOf returns the connection to a Unix socket that conn is, or that is below a connection of TLS. Only a [sock.Conn] has the identity
// of the socket.
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
