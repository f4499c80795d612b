package page

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

const (
	// settle is how long changes are gathered before viewers are told, so that a storm of them is told in some messages and not in thousands.
	settle = 100 * time.Millisecond
	// look is how often the source is looked at without an event: states in which a plugin is for a moment only, and counts of attempts,
	// have none.
	look = 2 * time.Second
	// pastEvents is how many past events a new viewer gets.
	pastEvents = 200
	// backlog is how many messages a viewer may leave unread. One that leaves more is cut off; its browser connects anew.
	backlog = 64
)

type message struct {
	event string
	data  []byte
}

// hub follows the source for all viewers, as long as there is one.
type hub struct {
	source Source

	mu      sync.Mutex
	viewers map[chan message]bool
	stop    context.CancelFunc
	stopped chan struct{}
	shown   picture
	// first is the message that shows a new viewer everything, for all who come before there is something else to show; nil if nobody has.
	first *message
}

// picture is what viewers have been shown, by key.
type picture map[string]proto.Message

func newHub(source Source) *hub { return &hub{source: source, viewers: map[chan message]bool{}} }

// join adds a viewer, whose first message is the whole picture. The channel is closed when it was too slow, or the source has ended.
func (h *hub) join() chan message {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stop == nil { // not by the number of viewers: one that was cut off may not have left yet
		h.start()
	}
	viewer := make(chan message, backlog)
	if h.first == nil {
		h.first = h.whole()
	}
	viewer <- *h.first
	h.viewers[viewer] = true
	return viewer
}

// leave removes a viewer. The last one waits until nothing of the hub runs any more.
func (h *hub) leave(viewer chan message) {
	h.mu.Lock()
	delete(h.viewers, viewer)
	last := len(h.viewers) == 0 && h.stop != nil
	stop, stopped := h.stop, h.stopped
	if last {
		h.stop = nil
		stop()
	}
	h.mu.Unlock()
	if last {
		<-stopped
	}
}

// start begins to follow the source. mu is held.
func (h *hub) start() {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	h.stop, h.stopped = cancel, stopped
	events := h.source.Events(ctx)
	fleet, err := h.source.Fleet()
	if err != nil {
		fleet = nil // the daemon's conditions say so
	}
	h.shown, h.first = h.picture(fleet), nil
	go func() {
		defer close(stopped)
		if fleet != nil {
			defer fleet.Close()
		}
		h.follow(ctx, events, fleet)
	}()
}

// follow tells the viewers what changes until ctx ends or the source has ended.
func (h *hub) follow(ctx context.Context, events <-chan *patchbayv1.Event, fleet Fleet) {
	next := time.NewTimer(look)
	defer next.Stop()
	var pending []*patchbayv1.Event
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events:
			if !ok {
				h.end(ctx)
				return
			}
			if pending = append(pending, e); due == nil {
				due = time.After(settle) //nolint:forbidigo // the first event of several sets when they are told
			}
			continue
		case <-due:
		case <-next.C:
		}
		next.Reset(look)
		h.tell(ctx, pending, fleet)
		pending, due = nil, nil
	}
}

// end cuts all viewers off: there is nothing more to tell.
func (h *hub) end(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	for viewer := range h.viewers {
		delete(h.viewers, viewer)
		close(viewer)
	}
	h.stop()
	h.stop = nil
}

// tell tells the viewers of events, and of what has changed since they were told last.
func (h *hub) tell(ctx context.Context, events []*patchbayv1.Event, fleet Fleet) {
	now := h.picture(fleet)
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return // others are the viewers by now
	}
	change := map[string]any{}
	for key, m := range now {
		if was, known := h.shown[key]; !known || !proto.Equal(was, m) {
			change[key] = encode(m)
		}
	}
	for key := range h.shown {
		if _, left := now[key]; !left {
			change[key] = nil
		}
	}
	h.shown = now
	if len(change) == 0 && len(events) == 0 {
		return
	}
	h.first = nil
	h.broadcast(message{"change", marshal(map[string]any{"set": change, "events": encodeAll(events)})})
}

// broadcast hands a message to every viewer that keeps up. mu is held.
func (h *hub) broadcast(m message) {
	for viewer := range h.viewers {
		select {
		case viewer <- m:
		default:
			delete(h.viewers, viewer)
			close(viewer)
		}
	}
}

// whole returns the message that shows everything. mu is held.
func (h *hub) whole() *message {
	set := make(map[string]any, len(h.shown))
	for key, m := range h.shown {
		set[key] = encode(m)
	}
	return &message{"state", marshal(map[string]any{"set": set, "events": encodeAll(h.source.LastEvents(pastEvents))})}
}

// picture looks at the source. The keys begin with what the message is.
func (h *hub) picture(fleet Fleet) picture {
	p := picture{}
	if fleet != nil {
		p["fleet health"] = fleet.Health()
		for _, node := range fleet.Nodes() {
			p["node "+node.GetName()] = node
		}
	}
	version, configuration := h.source.About()
	if version != nil {
		p["daemon version"] = version
	}
	if configuration != nil {
		p["daemon configuration"] = configuration
	}
	for _, plugin := range h.source.Plugins() {
		p["plugin "+plugin.GetSocketPath()+" "+plugin.GetInstance()+" "+plugin.GetType()+"/"+plugin.GetName()] = plugin
	}
	for _, launched := range h.source.Launched() {
		p["launched "+launched.GetName()] = launched
	}
	for _, condition := range h.source.Conditions() {
		p["condition "+condition.GetName()] = condition
	}
	return p
}

func encode(m proto.Message) json.RawMessage {
	b, err := protojson.Marshal(m)
	if err != nil {
		return json.RawMessage("null") // text that is not UTF-8; the source does not give that
	}
	return b
}

func encodeAll[M proto.Message](list []M) []json.RawMessage {
	all := make([]json.RawMessage, len(list))
	for i, m := range list {
		all[i] = encode(m)
	}
	return all
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte("{}") // maps of encoded messages cannot fail to marshal
	}
	return b
}
