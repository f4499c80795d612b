package controlapi

import (
	"context"
	"slices"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/daemon/resolver"
	"github.com/patchbay-dev/patchbay/plugin"
)

// view is a snapshot of the plugins and conditions as messages. The messages must not be changed.
type view struct {
	plugins    []*patchbayv1.Plugin
	conditions []*patchbayv1.Condition
}

func (c service) view() *view {
	return &view{each(c.Runtime.Plugins(), c.message), each(c.Runtime.Conditions(), conditionMessage)}
}

// message returns the message of an instance, with its metadata if it belongs to a launched plugin.
func (c service) message(s plugin.Status) *patchbayv1.Plugin {
	m := pluginMessage(s)
	if s.Launch != nil {
		m.Metadata = c.metadata(s.Launch.Name)
	}
	return m
}

// metadata returns the metadata of a launched plugin; nil for none.
func (c service) metadata(name string) map[string]string {
	if c.Catalogue == nil {
		return nil
	}
	return validMap(c.Catalogue.Metadata(name))
}

// matching returns the plugins of a view that pass each of three filters.
func (c service) matching(v *view, types, names, states []string) []*patchbayv1.Plugin {
	if len(types)+len(names)+len(states) == 0 {
		return v.plugins
	}
	ofTypes, named, in := resolver.SetOf(types), resolver.SetOf(names), resolver.SetOf(states)
	return slices.DeleteFunc(slices.Clone(v.plugins), func(p *patchbayv1.Plugin) bool {
		return !named.Contains(p.GetName()) || !in.Contains(p.GetState()) || !c.Names.HasType(ofTypes, p.GetType(), p.GetRoles())
	})
}

// shared lets concurrent callers of get share a computation. A caller that arrives during one waits for the next, so that its value is not
// older than the call. Any number of callers causes at most two computations.
type shared[T any] struct {
	computing sync.Mutex // held over compute
	mu        sync.Mutex
	next      func() T // the computation that has not begun; nil if no caller waits for one
}

func (s *shared[T]) get(compute func() T) T {
	s.mu.Lock()
	if s.next == nil {
		s.next = sync.OnceValue(func() T {
			s.computing.Lock()
			defer s.computing.Unlock()
			s.mu.Lock()
			s.next = nil // new callers need a newer value
			s.mu.Unlock()
			return compute()
		})
	}
	next := s.next
	s.mu.Unlock()
	return next()
}

// maxPart is the approximate maximum size of a message of StreamPlugins. It is far below the limit of gRPC clients.
const maxPart = 1 << 20

func (c service) ListPlugins(_ context.Context, wanted *patchbayv1.ListPluginsRequest) (*patchbayv1.ListPluginsResponse, error) {
	v := c.views.get(c.view)
	return &patchbayv1.ListPluginsResponse{
		Plugins: c.matching(v, wanted.GetTypes(), wanted.GetNames(), wanted.GetStates()), Conditions: v.conditions,
	}, nil
}

func (c service) StreamPlugins(
	ctx context.Context, wanted *patchbayv1.StreamPluginsRequest, stream *connect.ServerStream[patchbayv1.StreamPluginsResponse],
) error {
	v := c.views.get(c.view)
	plugins := c.matching(v, wanted.GetTypes(), wanted.GetNames(), wanted.GetStates())
	if err := countList(ctx, proto.Size(&patchbayv1.ListPluginsResponse{Plugins: plugins, Conditions: v.conditions})); err != nil {
		return err
	}
	part, size := &patchbayv1.StreamPluginsResponse{Conditions: v.conditions}, 0
	for _, p := range plugins {
		n := proto.Size(p)
		if size > 0 && size+n > maxPart {
			if err := stream.Send(part); err != nil {
				return err
			}
			part, size = &patchbayv1.StreamPluginsResponse{}, 0
		}
		part.Plugins = append(part.Plugins, p)
		size += n
	}
	return stream.Send(part)
}
