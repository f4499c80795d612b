package controlapi

import (
	"cmp"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// reasons has texts for states whose names need an explanation.
var reasons = map[plugin.State]string{
	plugin.StateRestored:    "It was registered before the daemon started and is being checked for life.",
	plugin.StateConnecting:  "Its socket is being asked who it is.",
	plugin.StateWaiting:     "It waits until the call that runs for another instance of the same name has returned.",
	plugin.StateSuperseded:  "A newer instance of the same type and name is current.",
	plugin.StateIdle:        "It has no process; the first call starts one.",
	plugin.StateBackoff:     "The last attempt failed, and another one is planned.",
	plugin.StateUnreachable: "It no longer accepts connections; the last error says where.",
	plugin.StateUnlinked:    "Its socket was removed while it serves; restart it, so that it makes a new one.",
	plugin.StateIgnored:     "There is no handler for its type, and it is left alone; it registers as soon as there is one.",
	plugin.StateRefused:     "It may not be registered as it is; the last error says why.",
}

func pluginMessage(s plugin.Status) *patchbayv1.Plugin {
	launch := cmp.Or(s.Launch, &plugin.LaunchStatus{})
	return &patchbayv1.Plugin{
		Type: untrusted.Valid(s.Type), Name: untrusted.Valid(s.Name), Version: untrusted.Valid(s.Version), Versions: validAll(s.Versions),
		State: string(s.State), Reason: reasons[s.State], Current: s.Current, Attempts: uint32(max(s.Attempts, 0)),
		Endpoint: untrusted.Valid(s.Endpoint), SocketPath: untrusted.Valid(s.SocketPath), Instance: untrusted.Valid(s.Instance),
		Source:    string(s.Source),
		FirstSeen: timestamp(s.FirstSeen), Since: timestamp(s.Since), RegisteredAt: timestamp(s.RegisteredAt),
		NextRetry: timestamp(s.NextRetry), LastError: untrusted.Valid(s.LastError),
		Roles: validAll(s.Registration.Roles), Details: validMap(s.Registration.Details),
		Health: healthOf(s.Health()), LaunchedAs: untrusted.Valid(launch.Name), Restarts: uint32(max(launch.Restarts, 0)),
	}
}

func healthOf(h plugin.Health) *patchbayv1.Health {
	return &patchbayv1.Health{
		State: string(h.State), Since: timestamp(h.Since), Reason: untrusted.Valid(h.Reason), Remedy: untrusted.Valid(h.Remedy),
		HealthyFrom: timestamp(h.HealthyFrom),
	}
}

// refusalMessage returns the message of a refused plugin whose socket no longer exists.
func refusalMessage(s plugin.Status) *patchbayv1.Plugin {
	m := pluginMessage(s)
	m.Reason = "It was refused and is gone; the last error says why. Fix that and start it again."
	return m
}

func eventMessage(e plugin.Event) *patchbayv1.Event {
	return &patchbayv1.Event{
		Seq: e.Seq, Time: timestamp(e.Time), Kind: string(e.Kind), Type: untrusted.Valid(e.Type), Name: untrusted.Valid(e.Name),
		Instance: untrusted.Valid(e.Instance), Endpoint: untrusted.Valid(e.Endpoint), SocketPath: untrusted.Valid(e.SocketPath),
		Message: untrusted.Valid(e.Message),
	}
}

func conditionMessage(c plugin.Condition) *patchbayv1.Condition {
	status := "degraded"
	if c.OK {
		status = "ok"
	}
	return &patchbayv1.Condition{Name: untrusted.Valid(c.Name), Status: status, Message: untrusted.Valid(c.Message),
		Since: timestamp(c.Since)}
}

// each returns the results of convert for the elements of list.
func each[From, To any](list []From, convert func(From) To) []To {
	converted := make([]To, len(list))
	for i, from := range list {
		converted[i] = convert(from)
	}
	return converted
}

func validAll(list []string) []string { return each(list, untrusted.Valid) }

// validMap is nil for an empty map.
func validMap(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	checked := make(map[string]string, len(m))
	for key, value := range m {
		checked[untrusted.Valid(key)] = untrusted.Valid(value)
	}
	return checked
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
