// Package registration is the host's side of the kubelet's plugin registration protocol
// (k8s.io/kubelet/pkg/apis/pluginregistration/v1): two unary gRPC calls on a fresh connection to a plugin's socket.
//
// It has its own small gRPC client, because two calls in sequence need neither the goroutines nor the buffers of a channel
// (docs/adr/0005): HTTP/2 with prior knowledge over the framer of golang.org/x/net/http2, one stream at a time, all on the caller's
// goroutine. The client has no streaming, no compression, no reconnecting, and no messages larger than some KiB.
//
// The package bounds the answers of plugins in bytes and in time. Package reconciler checks them, and repeats calls.
package registration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// maxReason is the maximum length in bytes of the reason of a refusal. A longer one is cut.
const maxReason = 1 << 10

var (
	getInfoHeaders = requestHeaders(registerapi.Registration_GetInfo_FullMethodName)
	notifyHeaders  = requestHeaders(registerapi.Registration_NotifyRegistrationStatus_FullMethodName)
)

// Client is a connection to the registration service of one plugin. It is not safe for concurrent use. It has no goroutine and reads
// nothing between two calls, so the next call answers a ping of the plugin.
//
// Errors of its calls are gRPC status errors: the status of the plugin, Unavailable if the connection ended, Internal if the plugin breaks
// the protocol, ResourceExhausted if it exceeds a bound. After an error that is not the plugin's status, all further calls fail.
type Client struct {
	socket *net.UnixConn
	conn   conn
}

// New returns a client that uses and later closes a connection to a registration socket.
func New(socket *net.UnixConn) *Client {
	c := &Client{socket: socket}
	c.conn.init(socket)
	return c
}

// GetInfo calls the plugin's GetInfo. It blocks until the plugin answers, ctx is done, or timeout has passed; a zero timeout means none.
func (c *Client) GetInfo(ctx context.Context, timeout time.Duration) (plugin.Info, error) {
	// gofail: var registrationGetInfo string
	// return plugin.Info{}, status.Error(codes.Unavailable, registrationGetInfo)
	var info registerapi.PluginInfo
	err := c.invoke(ctx, timeout, getInfoHeaders, &registerapi.InfoRequest{}, &info)
	if status.Code(err) == codes.Unimplemented {
		return plugin.Info{}, &NotServedError{Serves: c.serves(ctx, timeout), err: err}
	}
	if err != nil {
		return plugin.Info{}, err
	}
	return infoOf(&info), nil
}

// NotServedError is the error of GetInfo if the plugin does not implement it.
type NotServedError struct {
	Serves string // a known service that the plugin implements; may be empty
	err    error
}

func (e *NotServedError) Error() string {
	if e.Serves == "" {
		return fmt.Sprintf("it serves no registration: %v", e.err)
	}
	return fmt.Sprintf("it serves %s and no registration; a registrar has to register it", e.Serves)
}

// Unwrap returns the status of the plugin.
func (e *NotServedError) Unwrap() error { return e.err }

// others are methods without side effects, by service. These services need a registrar, another program that registers the plugin.
var others = map[string][]byte{
	"csi.v1.Identity":      requestHeaders("/csi.v1.Identity/GetPluginInfo"),
	"v1beta1.DevicePlugin": requestHeaders("/v1beta1.DevicePlugin/GetDevicePluginOptions"),
}

// serves returns a service in others that the plugin implements; empty for none.
func (c *Client) serves(ctx context.Context, timeout time.Duration) string {
	for _, service := range slices.Sorted(maps.Keys(others)) {
		err := c.invoke(ctx, timeout, others[service], &registerapi.InfoRequest{}, &registerapi.InfoRequest{})
		switch status.Code(err) {
		case codes.Unimplemented:
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted:
			return "" // the connection may have failed
		default:
			return service
		}
	}
	return ""
}

// ParseInfo decodes an answer to GetInfo that was not received by this package.
func ParseInfo(answer []byte) (plugin.Info, error) {
	var info registerapi.PluginInfo
	if err := proto.Unmarshal(answer, &info); err != nil {
		return plugin.Info{}, err
	}
	return infoOf(&info), nil
}

func infoOf(info *registerapi.PluginInfo) plugin.Info {
	return plugin.Info{Type: info.Type, Name: info.Name, Endpoint: info.Endpoint, Versions: info.SupportedVersions}
}

// Notify notifies the plugin whether it is registered and, if not, of the reason. It blocks as GetInfo does.
func (c *Client) Notify(ctx context.Context, timeout time.Duration, registered bool, reason string) error {
	// gofail: var registrationNotify string
	// return status.Error(codes.Unavailable, registrationNotify)
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	request := &registerapi.RegistrationStatus{PluginRegistered: registered, Error: strings.ToValidUTF8(reason, "")}
	return c.invoke(ctx, timeout, notifyHeaders, request, &registerapi.RegistrationStatusResponse{})
}

func (c *Client) invoke(ctx context.Context, timeout time.Duration, headers []byte, request, answer proto.Message) error {
	body, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, prefixLen, 64), request)
	if err != nil {
		return status.Errorf(codes.Internal, "encode the request: %v", err)
	}
	setPrefix(body)
	message, err := c.conn.call(ctx, deadline(ctx, timeout), headers, body)
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(message, answer); err != nil {
		return status.Errorf(codes.Internal, "decode the plugin's answer: %v", err)
	}
	return nil
}

// Hold keeps the connection open without further calls, to notice the end of the plugin. It calls fn once, when the plugin closes the
// connection or sends anything on it. The connection is closed before fn is called, or by stop. See [sock.Watcher.WatchConn] for the rules
// of fn.
//
// Hold does not block. It first reads and acknowledges frames that the plugin has sent since its last answer. It returns an error if no
// call was made on the connection, the plugin is closing it, or the system cannot watch it. The caller must then close c.
func (c *Client) Hold(w *sock.Watcher, fn func()) (stop func(), err error) {
	// gofail: var registrationHold string
	// return nil, errors.New(registrationHold)
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	if err := c.conn.drain(raw); err != nil {
		return nil, err
	}
	stop, err = w.WatchConn(c.socket, fn)
	if err == nil {
		c.conn.release()
	}
	return stop, err
}

// WatchExit calls fn once when the process at the other end exits. The watch outlives the connection. See [sock.Watcher.WatchProcess].
func (c *Client) WatchExit(w *sock.Watcher, fn func()) (stop func(), err error) {
	return w.WatchProcess(c.socket, fn)
}

// Close closes the connection, unless Hold has succeeded. It does not block and may be called again.
func (c *Client) Close() error {
	if err := c.socket.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
