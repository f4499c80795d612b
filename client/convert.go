package client

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

func pluginOf(p *patchbayv1.Plugin) Plugin {
	return Plugin{
		Type:         p.GetType(),
		Name:         p.GetName(),
		Version:      p.GetVersion(),
		Versions:     listOf(p.GetVersions()),
		Roles:        listOf(p.GetRoles()),
		Details:      p.GetDetails(),
		State:        p.GetState(),
		Reason:       p.GetReason(),
		Current:      p.GetCurrent(),
		Endpoint:     p.GetEndpoint(),
		SocketPath:   p.GetSocketPath(),
		Instance:     p.GetInstance(),
		Source:       p.GetSource(),
		FirstSeen:    timeOf(p.GetFirstSeen()),
		Since:        timeOf(p.GetSince()),
		RegisteredAt: timeOf(p.GetRegisteredAt()),
		Attempts:     int(p.GetAttempts()),
		NextRetry:    timeOf(p.GetNextRetry()),
		LastError:    p.GetLastError(),
	}
}

// listOf returns a list that is an array in JSON, never null.
func listOf(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

func pluginsOf(list []*patchbayv1.Plugin) []Plugin {
	plugins := make([]Plugin, len(list))
	for i, p := range list {
		plugins[i] = pluginOf(p)
	}
	return plugins
}

func conditionsOf(list []*patchbayv1.Condition) []Condition {
	conditions := make([]Condition, len(list))
	for i, c := range list {
		conditions[i] = Condition{
			Name:    c.GetName(),
			Status:  c.GetStatus(),
			Message: c.GetMessage(),
			Since:   timeOf(c.GetSince()),
		}
	}
	return conditions
}

func eventOf(e *patchbayv1.Event) Event {
	return Event{
		Seq:        e.GetSeq(),
		Time:       e.GetTime().AsTime(),
		Kind:       e.GetKind(),
		Type:       e.GetType(),
		Name:       e.GetName(),
		Instance:   e.GetInstance(),
		Endpoint:   e.GetEndpoint(),
		SocketPath: e.GetSocketPath(),
		Message:    e.GetMessage(),
	}
}

func timeOf(ts *timestamppb.Timestamp) *time.Time {
	if ts == nil {
		return nil
	}
	return new(ts.AsTime())
}
