package daemon

import (
	"context"
	"sync"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// maxMethods bounds how many RPC methods have a label of their own: callers of a plugin choose their names, and plugins which they answer.
const maxMethods = 256

// rpcMetrics counts the calls on the shared connections to plugins. It is a [stats.Handler].
type rpcMetrics struct {
	calls     *prometheus.CounterVec
	durations *prometheus.HistogramVec

	mu      sync.RWMutex
	methods map[string]bool
}

func newRPCMetrics() *rpcMetrics {
	return &rpcMetrics{
		methods: map[string]bool{},
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "patchbay_plugin_rpcs_total",
			Help: "Calls to plugins that have ended, by method and gRPC status code.",
		}, []string{"method", "code"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "patchbay_plugin_rpc_duration_seconds",
			Help:    "How long calls to plugins took, by method.",
			Buckets: prometheus.ExponentialBuckets(0.0002, 4, 10),
		}, []string{"method"}),
	}
}

type rpcMethod struct{}

// TagRPC implements [stats.Handler].
func (m *rpcMetrics) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, rpcMethod{}, info.FullMethodName)
}

// HandleRPC implements [stats.Handler].
func (m *rpcMetrics) HandleRPC(ctx context.Context, s stats.RPCStats) {
	end, ok := s.(*stats.End)
	if !ok {
		return
	}
	method, _ := ctx.Value(rpcMethod{}).(string)
	code := status.Code(end.Error)
	method = m.label(method, code)
	m.calls.WithLabelValues(method, code.String()).Inc()
	m.durations.WithLabelValues(method).Observe(end.EndTime.Sub(end.BeginTime).Seconds())
}

// TagConn implements [stats.Handler].
func (m *rpcMetrics) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements [stats.Handler].
func (m *rpcMetrics) HandleConn(context.Context, stats.ConnStats) {}

// label returns the label of a method whose call ended with a code: the method, unless there are too many, or only callers have ever named
// it.
func (m *rpcMetrics) label(method string, code codes.Code) string {
	m.mu.RLock()
	known := m.methods[method]
	m.mu.RUnlock()
	switch {
	case known:
		return method
	case code == codes.Unimplemented || !utf8.ValidString(method): // which no label may be
		return labelOther
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.methods[method] && len(m.methods) >= maxMethods {
		return labelOther
	}
	m.methods[method] = true
	return method
}
