package daemon

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/patchbay-dev/patchbay"
	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// reasons says, for the states that do not say it themselves, why an instance is in its state.
var reasons = map[reconciler.State]string{
	reconciler.StateRestored:    "It was registered before the daemon started and is being checked for life.",
	reconciler.StateConnecting:  "Its socket is being asked who it is.",
	reconciler.StateWaiting:     "It waits until the call that runs for another instance of the same name has returned.",
	reconciler.StateSuperseded:  "A newer instance of the same type and name is current.",
	reconciler.StateBackoff:     "The last attempt failed, and another one is planned.",
	reconciler.StateUnreachable: "Nobody accepts where it serves; the last error says where.",
	reconciler.StateUnlinked:    "Somebody removed its socket, and it serves on; restart it, so that it makes the socket anew.",
	reconciler.StateIgnored:     "Nobody handles its type, and it is left alone; it registers as soon as somebody does.",
	reconciler.StateRefused:     "It may not be registered as it is; the last error says why.",
}

func pluginMessage(s patchbay.PluginStatus) *patchbayv1.Plugin {
	details := make(map[string]string, len(s.Registration.Details))
	for key, value := range s.Registration.Details {
		details[valid(key)] = valid(value)
	}
	return &patchbayv1.Plugin{
		Type:         valid(s.Type),
		Name:         valid(s.Name),
		Version:      valid(s.Version),
		Versions:     validAll(s.Versions),
		State:        string(s.State),
		Reason:       reasons[s.State],
		Current:      s.Current,
		Endpoint:     valid(s.Endpoint),
		SocketPath:   valid(s.SocketPath),
		Instance:     valid(s.Instance),
		Source:       string(s.Source),
		FirstSeen:    timestamp(s.FirstSeen),
		Since:        timestamp(s.Since),
		RegisteredAt: timestamp(s.RegisteredAt),
		Attempts:     uint32(max(s.Attempts, 0)),
		NextRetry:    timestamp(s.NextRetry),
		LastError:    valid(s.LastError),
		Roles:        validAll(s.Registration.Roles),
		Details:      details,
	}
}

// refusalMessage describes the refusal of a plugin that is gone.
func refusalMessage(s patchbay.PluginStatus) *patchbayv1.Plugin {
	m := pluginMessage(s)
	m.Reason = "It was refused and is gone; the last error says why. It registers when it is started anew, if that was mended."
	return m
}

func eventMessage(e patchbay.Event) *patchbayv1.Event {
	return &patchbayv1.Event{
		Seq:        e.Seq,
		Time:       timestamp(e.Time),
		Kind:       string(e.Kind),
		Type:       valid(e.Type),
		Name:       valid(e.Name),
		Instance:   valid(e.Instance),
		Endpoint:   valid(e.Endpoint),
		SocketPath: valid(e.SocketPath),
		Message:    valid(e.Message),
	}
}

func conditionMessages(conditions []patchbay.Condition) []*patchbayv1.Condition {
	messages := make([]*patchbayv1.Condition, len(conditions))
	for i, c := range conditions {
		status := "degraded"
		if c.OK {
			status = "ok"
		}
		messages[i] = &patchbayv1.Condition{
			Name:    c.Name,
			Status:  status,
			Message: valid(c.Message),
			Since:   timestamp(c.Since),
		}
	}
	return messages
}

// valid makes a string fit for protobuf, which refuses a whole message for one that is not UTF-8. Paths may hold any bytes.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func validAll(list []string) []string {
	all := make([]string, len(list))
	for i, s := range list {
		all[i] = valid(s)
	}
	return all
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
