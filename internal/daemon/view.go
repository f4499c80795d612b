package daemon

import (
	"context"
	"slices"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/plugin"
)

// view is what the daemon knows, as messages that do not change.
type view struct {
	plugins    []*patchbayv1.Plugin
	conditions []*patchbayv1.Condition
}

func (p picture) view() *view {
	return &view{each(p.source.Plugins(), p.describer()), each(p.source.Conditions(), conditionMessage)}
}

// describer returns what makes the message of an instance, with the metadata of those that are launched now.
func (p picture) describer() func(plugin.Status) *patchbayv1.Plugin {
	launched := map[string]string{} // names, by socket
	if p.catalogue != nil {
		for _, s := range p.launched.Plugins() {
			if s.Socket != "" {
				launched[s.Socket] = s.Name
			}
		}
	}
	return func(s plugin.Status) *patchbayv1.Plugin {
		m := pluginMessage(s)
		name := launched[s.SocketPath]
		if s.SocketPath == "" && s.Source == plugin.SourceLaunched {
			name = s.Name // it does not serve
		}
		m.Metadata = p.catalogue.of(name)
		return m
	}
}

// matching returns the plugins of a view that pass each of three filters.
func (c *control) matching(v *view, types, names, states []string) []*patchbayv1.Plugin {
	if len(types)+len(names)+len(states) == 0 {
		return v.plugins
	}
	ofTypes, named, in := setOf(types), setOf(names), setOf(states)
	return slices.DeleteFunc(slices.Clone(v.plugins), func(p *patchbayv1.Plugin) bool {
		return !named.passes(p.GetName()) || !in.passes(p.GetState()) || !c.anyIsOf(ofTypes, p.GetType(), p.GetRoles())
	})
}

// shared makes something for all who ask at once: who asks while it is being made waits for the next one, which is as new as his question,
// together with all others who do. There are never more than two for any number of callers.
type shared[T any] struct {
	make func() T

	making sync.Mutex // held by the one who makes it
	mu     sync.Mutex
	next   func() T // nil while nobody waits
}

func (s *shared[T]) get() T {
	s.mu.Lock()
	if s.next == nil {
		s.next = sync.OnceValue(func() T {
			s.making.Lock()
			defer s.making.Unlock()
			s.mu.Lock()
			s.next = nil // who comes from now on asks later than it is made
			s.mu.Unlock()
			return s.make()
		})
	}
	next := s.next
	s.mu.Unlock()
	return next()
}

// maxPart is about how many bytes of plugins are in one message of a stream: well below what any gRPC client takes.
const maxPart = 1 << 20

func (c *control) ListPlugins(_ context.Context, wanted *patchbayv1.ListPluginsRequest) (*patchbayv1.ListPluginsResponse, error) {
	v := c.views.get()
	return &patchbayv1.ListPluginsResponse{
		Plugins: c.matching(v, wanted.GetTypes(), wanted.GetNames(), wanted.GetStates()), Conditions: v.conditions,
	}, nil
}

func (c *control) StreamPlugins(
	ctx context.Context, wanted *patchbayv1.StreamPluginsRequest, stream *connect.ServerStream[patchbayv1.StreamPluginsResponse],
) error {
	v := c.views.get()
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
