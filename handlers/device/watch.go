package device

import (
	"context"
	"fmt"
	"slices"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

var retry = backoff.Backoff{Min: 50 * time.Millisecond, Max: 5 * time.Second}

const (
	// steady is how long a stream must last to reset the back-off.
	steady = 10 * time.Second
	// A plugin may send listBurst lists at once and one in listPause on average. Further ones wait in the plugin.
	listPause = 20 * time.Millisecond
	listBurst = 50
	// maxNodes bounds the NUMA nodes of a device.
	maxNodes = 64
)

type device struct {
	healthy bool
	nodes   []int64
}

// startWatch keeps the list of a plugin's devices up to date, in a goroutine, until unwatch is called.
func (h *Handler) startWatch(p *devicePlugin) {
	ctx, cancel := h.bound(context.Background())
	p.unwatch, p.unwatched = cancel, make(chan struct{})
	h.running.Go(func() { // the caller is counted, so this is before the end of Close
		defer close(p.unwatched)
		defer cancel()
		h.watch(ctx, p)
	})
}

// watch keeps a stream of lists open and resumes it when it breaks.
func (h *Handler) watch(ctx context.Context, p *devicePlugin) {
	for failures := 1; ; failures++ {
		began := time.Now()
		err := h.stream(ctx, p)
		if ctx.Err() != nil {
			return
		}
		h.lost(p, err)
		// The stream of a plugin that has exited ends before the pipeline looks again.
		h.older.takeDown(func(a *announcement) bool { return a.path == p.path && isDead(p.path) })
		if time.Since(began) > steady {
			failures = 1
		}
		if !backoff.Pause(ctx, retry.After(failures)) {
			return
		}
	}
}

func (h *Handler) stream(ctx context.Context, p *devicePlugin) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return endpoint.CallError("ListAndWatch", err)
	}
	var due time.Time
	for {
		list, err := stream.Recv()
		if err != nil {
			return endpoint.CallError("ListAndWatch", err)
		}
		devices, err := devicesOf(list, h.MaxDevices)
		if err != nil {
			return fmt.Errorf("ListAndWatch: %w", err)
		}
		if err := h.listed(p, devices); err != nil {
			return fmt.Errorf("ListAndWatch: %w", err)
		}
		now := time.Now()
		if earliest := now.Add(-listBurst * listPause); due.Before(earliest) {
			due = earliest
		}
		if due = due.Add(listPause); due.After(now) && !backoff.Pause(ctx, due.Sub(now)) {
			return ctx.Err()
		}
	}
}

// devicesOf checks a list of devices. Of two with one ID the latter counts, as for the kubelet.
func devicesOf(list *pluginapi.ListAndWatchResponse, limit int) (map[string]device, error) {
	if n := len(list.GetDevices()); n > limit {
		return nil, fmt.Errorf("the list has %d devices, and more than %d are not allowed", n, limit)
	}
	devices := make(map[string]device, len(list.GetDevices()))
	for _, d := range list.GetDevices() {
		if err := untrusted.Required("the ID of a device in the list", d.GetID(), maxDeviceID); err != nil {
			return nil, err
		}
		nodes := d.GetTopology().GetNodes()
		if len(nodes) > maxNodes {
			return nil, fmt.Errorf("device %s is near to %d NUMA nodes, and more than %d are not allowed", untrusted.Quote(d.GetID()), len(nodes),
				maxNodes)
		}
		found := device{healthy: d.GetHealth() == pluginapi.Healthy}
		for _, n := range nodes {
			found.nodes = append(found.nodes, n.GetID())
		}
		slices.Sort(found.nodes)
		devices[d.GetID()] = found
	}
	return devices, nil
}

// listed stores a list of devices, unless all resources together would have too many.
func (h *Handler) listed(p *devicePlugin, devices map[string]device) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.makeRoom(p.resource, len(devices)); err != nil {
		return err
	}
	p.watched, p.wrong = true, ""
	if r := h.resources[p.resource]; r != nil && r.plugin == p {
		r.devices = devices
		h.tell()
	} else {
		p.devices = devices
	}
	p.answerFirst(nil)
	return nil
}

// lost marks the list of a plugin's devices as out of date. It logs a reason once until it changes.
func (h *Handler) lost(p *devicePlugin, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p.answerFirst(err)
	was := p.watched
	p.watched = false
	r := h.resources[p.resource]
	if r == nil || r.plugin != p {
		return
	}
	if was {
		h.tell()
	}
	if wrong := err.Error(); wrong != p.wrong {
		p.wrong = wrong
		h.Logger.Warn("the list of a device plugin's devices is not up to date: it is asked for again", "resource", p.resource,
			"endpoint", p.path, "error", err)
	}
}

func (p *devicePlugin) answerFirst(err error) {
	select {
	case p.first <- err:
	default: // it was said, or nobody waits
	}
}
