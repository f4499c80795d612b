package client

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// each returns what each message of a list says. The list is an array in JSON, never null.
func each[M, T any](messages []M, of func(M) T) []T {
	values := make([]T, len(messages))
	for i, m := range messages {
		values[i] = of(m)
	}
	return values
}

// present returns a list that is an array in JSON, never null.
func present[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// presentMap returns a map that is an object in JSON, never null.
func presentMap(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func timeOf(ts *timestamppb.Timestamp) *time.Time {
	if ts == nil {
		return nil
	}
	return new(ts.AsTime())
}

func pluginOf(p *patchbayv1.Plugin) Plugin {
	return Plugin{
		Type: p.GetType(), Name: p.GetName(), Version: p.GetVersion(), Versions: present(p.GetVersions()), Roles: present(p.GetRoles()),
		Details: p.GetDetails(), State: p.GetState(), Reason: p.GetReason(), Current: p.GetCurrent(), Endpoint: p.GetEndpoint(),
		SocketPath: p.GetSocketPath(), Instance: p.GetInstance(), Source: p.GetSource(), FirstSeen: timeOf(p.GetFirstSeen()),
		Since: timeOf(p.GetSince()), RegisteredAt: timeOf(p.GetRegisteredAt()), Attempts: int(p.GetAttempts()),
		NextRetry: timeOf(p.GetNextRetry()), LastError: p.GetLastError(),
	}
}

func conditionOf(c *patchbayv1.Condition) Condition {
	return Condition{Name: c.GetName(), Status: c.GetStatus(), Message: c.GetMessage(), Since: timeOf(c.GetSince())}
}

func eventOf(e *patchbayv1.Event) Event {
	return Event{
		Seq: e.GetSeq(), Time: e.GetTime().AsTime(), Kind: e.GetKind(), Type: e.GetType(), Name: e.GetName(), Instance: e.GetInstance(),
		Endpoint: e.GetEndpoint(), SocketPath: e.GetSocketPath(), Message: e.GetMessage(),
	}
}
