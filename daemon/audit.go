package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// EventAudit says who did, or was denied, something on the control socket for which it does not suffice to read, and what came of it. Of
// denials that are alike there is one in a minute, and of calls to plugins that are alike too; everything else is there each time.
const EventAudit reconciler.EventKind = "audit"

// auditor makes known who did what, as events and in the group "audit" of the log.
type auditor struct {
	publish func(reconciler.Event)
	log     *slog.Logger
	// denials and calls are apart, so that those who are denied cannot keep calls from being told.
	denials, calls sparse
}

// done tells of an action that was allowed. The error is what came of it.
func (a *auditor) done(c *caller, action, target string, err error) {
	e := entry{action: action, target: target, result: resultOK}
	level := slog.LevelInfo
	if err != nil {
		e.result, e.why, level = connect.CodeOf(err).String(), textOf(err), slog.LevelWarn
	}
	a.tell(c, level, e)
}

// called tells of a call to a plugin that ended with a code, unless one like it was told a short time ago.
func (a *auditor) called(c *caller, target string, code codes.Code) {
	if first, left := a.calls.first(fmt.Sprint(c.peer.UID, target, code)); first {
		a.tell(c, slog.LevelInfo, entry{action: actionCall, target: target, result: resultOf(code), left: left})
	}
}

// denied tells of an action that was not allowed, unless the same was told a short time ago. What the caller can make up is no part of it.
func (a *auditor) denied(c *caller, action string, err error) {
	if first, left := a.denials.first(fmt.Sprint(c.unknown == nil, c.peer.UID, action)); first {
		a.tell(c, slog.LevelWarn, entry{action: action, result: resultDenied, why: textOf(err), left: left})
	}
}

// resultOf returns the name of a code; what the plugin answered is its own.
func resultOf(code codes.Code) string {
	if code == codes.OK {
		return resultOK
	}
	return connect.Code(code).String()
}

// entry is what somebody did.
type entry struct {
	action, target, result, why string
	left                        int // how many were left out before it
}

// The results of what was not refused, and of what was for want of a role. The others are names of codes.
const resultOK, resultDenied = "ok", "denied"

func (a *auditor) tell(c *caller, level slog.Level, e entry) {
	message := fmt.Sprintf("user %d, group %d, process %d: %s", c.peer.UID, c.peer.GID, c.peer.PID, e.action)
	if c.unknown != nil {
		message = "somebody unknown: " + e.action
	}
	if e.target != "" {
		message += " " + e.target
	}
	message += ": " + e.result
	if e.why != "" {
		message += ": " + e.why
	}
	if e.left > 0 {
		message += fmt.Sprintf(" (%d were left out before it)", e.left)
	}
	a.log.Log(context.Background(), level, "audit", slog.Group("audit",
		"uid", c.peer.UID, "gid", c.peer.GID, "pid", c.peer.PID, "action", e.action, "target", e.target, "result", e.result, "why", e.why,
		"leftOut", e.left))
	a.publish(reconciler.Event{Time: time.Now(), Kind: EventAudit, Message: message})
}

// textOf returns the text of an error, without that of its code and in one line.
func textOf(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*connect.Error](err); ok {
		text = e.Message()
	}
	return strings.ReplaceAll(valid(text), "\n", "; ")
}

// actionCall is the action of a call to a plugin.
const actionCall = "CallPlugin"

// actionOf returns what a method does, for example "LaunchPlugin".
func actionOf(procedure string) string { return path.Base(procedure) }

// targetOf returns what a request is about.
func targetOf(request any) string {
	switch m := request.(type) {
	case *patchbayv1.LaunchPluginRequest:
		return short(m.GetName())
	case *patchbayv1.StopPluginRequest:
		return short(m.GetName())
	case *patchbayv1.RestartPluginRequest:
		return short(m.GetName())
	case *patchbayv1.AllocateDevicesRequest:
		return short(m.GetResource()) + " for " + short(m.GetOwner())
	case *patchbayv1.ReleaseDevicesRequest:
		return short(m.GetResource()) + " of " + short(m.GetOwner())
	}
	return ""
}

const (
	// sparseQuiet is for how long what was told is not told again, and maxSparse how much is remembered for that.
	sparseQuiet = time.Minute
	maxSparse   = 256
)

// sparse says what is to be told of things that may come in floods. Its zero value is ready, and it is safe for concurrent use.
type sparse struct {
	mu   sync.Mutex
	told map[string]time.Time
	left int
}

// first says whether something is to be told, and how much was left out since something was told before it.
func (s *sparse) first(key string) (first bool, left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if at, ok := s.told[key]; ok && now.Sub(at) < sparseQuiet {
		s.left++
		return false, 0
	}
	if len(s.told) >= maxSparse {
		for k, at := range s.told {
			if now.Sub(at) >= sparseQuiet {
				delete(s.told, k)
			}
		}
		if len(s.told) >= maxSparse {
			s.left++
			return false, 0 // somebody makes things up: enough of them are known
		}
	}
	if s.told == nil {
		s.told = map[string]time.Time{}
	}
	s.told[key] = now
	left, s.left = s.left, 0
	return true, left
}
