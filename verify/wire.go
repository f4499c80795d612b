package verify

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/patchbay-dev/patchbay/internal/grpcsock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const (
	// maxMessage bounds one answer of a plugin in bytes.
	maxMessage = 4 << 20
	// maxTraced bounds the reported calls of a rule.
	maxTraced = 4
	// maxShown bounds each quoted text of a plugin, in bytes.
	maxShown = 512
)

// text returns the text of an error; empty for nil.
func text(err error) string {
	if err == nil {
		return ""
	}
	return clip(err.Error())
}

func clip(s string) string { return untrusted.Cut(s, maxShown) }

// trace records the requests of a rule and their answers: the first ones and the last.
type trace struct {
	sent, received []string
	more           int
}

func (t *trace) reset() { *t = trace{} }

func (t *trace) add(sent, received string) {
	if len(t.sent) == maxTraced {
		t.sent, t.received = t.sent[:maxTraced-1], t.received[:maxTraced-1]
		t.more++
	}
	t.sent, t.received = append(t.sent, clip(sent)), append(t.received, clip(received))
}

func (t *trace) texts() (sent, received string) {
	join := func(all []string) string {
		if strings.Join(all, "") == "" {
			return ""
		}
		if t.more > 0 {
			last := len(all) - 1
			return fmt.Sprintf("%s; … (%d more); %s", strings.Join(all[:last], "; "), t.more, all[last])
		}
		return strings.Join(all, "; ")
	}
	return join(t.sent), join(t.received)
}

func (t *trace) addCall(method string, request, response any, err error) {
	received := show(response)
	if err != nil {
		received = brief(err)
	}
	t.add(strings.TrimPrefix(method, "/")+" "+show(request), received)
}

func show(message any) string {
	m, ok := message.(proto.Message)
	if !ok {
		return ""
	}
	if size := proto.Size(m); size > 64<<10 {
		return fmt.Sprintf("(%d bytes)", size)
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return "(" + err.Error() + ")"
	}
	return clip(string(text))
}

func brief(err error) string {
	st, ok := status.FromError(err)
	if !ok {
		return text(err)
	}
	return fmt.Sprintf("failed with %v: %s", st.Code(), clip(st.Message()))
}

// answered reports whether the method itself returned the error, not the transport, a deadline or a server without the method.
func answered(err error) bool {
	switch status.Code(err) {
	case codes.Unimplemented, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return false
	default:
		return true
	}
}

// dial returns a connection to a socket; the first call connects. Each unary call has a timeout, and is recorded in t unless that is nil.
func dial(path string, limit time.Duration, t *trace) (*grpc.ClientConn, error) {
	return grpcsock.Dial(path,
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: limit}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithDisableServiceConfig(),
		grpc.WithUnaryInterceptor(func(
			ctx context.Context, method string, request, response any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
		) error {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			err := invoke(ctx, method, request, response, conn, options...)
			if t != nil {
				t.addCall(method, request, response, err)
			}
			return err
		}),
	)
}
