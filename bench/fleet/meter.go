package main

import (
	"context"
	"sync"

	"google.golang.org/grpc"
)

// meter counts the requests of publishers, by method. Each message of a stream is one.
type meter struct {
	mu     sync.Mutex
	counts map[string]int
}

func newMeter() *meter { return &meter{counts: map[string]int{}} }

func (m *meter) add(method string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[method]++
}

// of returns how often a method was called.
func (m *meter) of(method string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[method]
}

func (m *meter) total() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	total := 0
	for _, n := range m.counts {
		total += n
	}
	return total
}

func (m *meter) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
			invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			m.add(method)
			return invoke(ctx, method, req, reply, conn, options...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
			begin grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := begin(ctx, desc, conn, method, options...)
			return &metered{stream, m, method}, err
		}),
	}
}

type metered struct {
	grpc.ClientStream
	meter  *meter
	method string
}

func (s *metered) SendMsg(message any) error {
	s.meter.add(s.method)
	return s.ClientStream.SendMsg(message)
}
