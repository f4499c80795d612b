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
	// batchDelay is how long changes are collected before they are sent, so that a burst of changes needs few messages.
	batchDelay = 100 * time.Millisecond
	// pollInterval is the time between two snapshots of the source without an event. Some short-lived states and counters have no events.
	pollInterval = 2 * time.Second
	// pastEvents is how many past events a new viewer gets.
	pastEvents = 200
	// backlog is how many messages a viewer may leave unread. A slower viewer is disconnected; its browser connects again.
	backlog = 64
)

type message struct {
	event string
	data  []byte
}

// hub follows the source for all viewers. It has one goroutine while there is a viewer.
type hub struct {
	source Source

	mu      sync.Mutex
	viewers map[chan message]bool
	stop    context.CancelFunc
	stopped chan struct{}
	sent    snapshot
	// initial is the first message for a new viewer; nil if the snapshot has changed since it was built.
	initial *message
}

// snapshot is the state of the source. A key begins with the kind of its message.
type snapshot map[string]proto.Message

func newHub(source Source) *hub { return &hub{source: source, viewers: map[chan message]bool{}} }

// join adds a viewer. Its first message is the whole snapshot. The channel is closed if the viewer is too slow or the source ends.
func (h *hub) join() chan message {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stop == nil { // viewers may be empty while the goroutine runs: a disconnected viewer may not have left yet
		h.start()
	}
	viewer := make(chan message, backlog)
	if h.initial == nil {
		h.initial = h.initialMessage()
	}
	viewer <- *h.initial
	h.viewers[viewer] = true
	return viewer
}

// leave removes a viewer. For the last one it blocks until the hub's goroutine has ended.
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

// start starts to follow the source. mu is held.
func (h *hub) start() {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	h.stop, h.stopped = cancel, stopped
	events := h.source.Events(ctx)
	fleet := h.source.Fleet()
	h.sent, h.initial = h.snapshot(fleet), nil
	go func() {
		defer close(stopped)
		h.follow(ctx, events, fleet)
	}()
}

// follow sends changes to the viewers until ctx is done or the source ends.
func (h *hub) follow(ctx context.Context, events <-chan *patchbayv1.Event, fleet Fleet) {
	next := time.NewTimer(pollInterval)
	defer next.Stop()
	var pending []*patchbayv1.Event
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events:
			if !ok {
				h.disconnectAll(ctx)
				return
			}
			if pending = append(pending, e); due == nil {
				due = time.After(batchDelay) //nolint:forbidigo // one timer for each batch
			}
			continue
		case <-due:
		case <-next.C:
		}
		next.Reset(pollInterval)
		h.update(ctx, pending, fleet)
		pending, due = nil, nil
	}
}

// disconnectAll disconnects all viewers after the source has ended.
func (h *hub) disconnectAll(ctx context.Context) {
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

// update sends events, and the changes of the snapshot since the last update, to the viewers.
func (h *hub) update(ctx context.Context, events []*patchbayv1.Event, fleet Fleet) {
	now := h.snapshot(fleet)
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return // the viewers have left; new ones have started another goroutine
	}
	change := map[string]any{}
	for key, m := range now {
		if was, known := h.sent[key]; !known || !proto.Equal(was, m) {
			change[key] = encode(m)
		}
	}
	for key := range h.sent {
		if _, exists := now[key]; !exists {
			change[key] = nil
		}
	}
	h.sent = now
	if len(change) == 0 && len(events) == 0 {
		return
	}
	h.initial = nil
	h.broadcast(message{"change", marshal(map[string]any{"set": change, "events": encodeAll(events)})})
}

// broadcast sends a message to every viewer and disconnects those whose backlog is full. mu is held.
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

// initialMessage returns the message with the whole snapshot and the past events. mu is held.
func (h *hub) initialMessage() *message {
	set := make(map[string]any, len(h.sent))
	for key, m := range h.sent {
		set[key] = encode(m)
	}
	return &message{"state", marshal(map[string]any{"set": set, "events": encodeAll(h.source.LastEvents(pastEvents))})}
}

func (h *hub) snapshot(fleet Fleet) snapshot {
	p := snapshot{}
	if fleet != nil {
		nodes := fleet.Nodes()
		p["fleet health"] = fleet.Health()
		for _, node := range nodes {
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
		return json.RawMessage("null") // text that is not UTF-8, which the source does not return
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
		return []byte("{}") // cannot happen: the values are maps of encoded messages
	}
	return b
}
