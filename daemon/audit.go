package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	// They are apart, so that neither those who are denied nor those who call what does not exist can keep calls from being told.
	denials, calls, misses sparse
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

// called tells of a call that ended with a code, unless one like it was told a short time ago. A first call of what exists is always told.
// Of calls that reached no plugin, or no method of it, whose names callers make up, there is a bounded number for each user.
func (a *auditor) called(c *caller, target string, reached bool, code codes.Code) {
	what := audited{c.peer.UID, c.unknown == nil, target, code}
	tell := a.misses.first
	if reached && code != codes.Unimplemented {
		tell = a.calls.always
	}
	if first, left := tell(what); first {
		a.tell(c, slog.LevelInfo, entry{action: actionCall, target: target, result: resultOf(code), left: left})
	}
}

// denied tells of an action that was not allowed, unless the same was told a short time ago. What the caller can make up is no part of it.
func (a *auditor) denied(c *caller, action string, err error) {
	if first, left := a.denials.first(audited{uid: c.peer.UID, known: c.unknown == nil, target: action}); first {
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
	// sparseQuiet is for how long what was told is not told again.
	sparseQuiet = time.Minute
	// maxSparse and maxAlways are how much is remembered of one user for that, maxUsers of how many users.
	maxSparse = 256
	maxAlways = 4096
	maxUsers  = 1024
)

// audited is what is told of: equal values are alike.
type audited struct {
	uid    uint32
	known  bool // whether it is known who that is
	target string
	code   codes.Code
}

// sparse says what is to be told of things that may come in floods. Its zero value is ready, and it is safe for concurrent use.
type sparse struct {
	mu    sync.Mutex
	users map[uint32]*toldUser
}

// toldUser is what was told of one user. Nobody else can have any of it left out.
type toldUser struct {
	told map[audited]time.Time
	left int
}

// first says whether something is to be told, and how much of the same user was left out since something was told before it. Of what
// callers make up enough is known when a lot of it was told: the rest is left out.
func (s *sparse) first(what audited) (first bool, left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, now := s.user(what.uid), time.Now()
	if len(u.told) >= maxSparse {
		u.forget(now)
	}
	if len(u.told) >= maxSparse && !u.knows(what, now) {
		u.left++
		return false, 0
	}
	return u.tell(what, now)
}

// always is first for what is never left out for the sake of others: if too much is remembered, it is told again.
func (s *sparse) always(what audited) (first bool, left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, now := s.user(what.uid), time.Now()
	if len(u.told) >= maxAlways {
		clear(u.told)
	}
	return u.tell(what, now)
}

// user returns what was told of a user. mu is held.
func (s *sparse) user(uid uint32) *toldUser {
	u := s.users[uid]
	if u != nil {
		return u
	}
	if len(s.users) >= maxUsers {
		clear(s.users) // what was told is told again
	}
	if s.users == nil {
		s.users = map[uint32]*toldUser{}
	}
	u = &toldUser{told: map[audited]time.Time{}}
	s.users[uid] = u
	return u
}

func (u *toldUser) knows(what audited, now time.Time) bool {
	at, ok := u.told[what]
	return ok && now.Sub(at) < sparseQuiet
}

func (u *toldUser) forget(now time.Time) {
	maps.DeleteFunc(u.told, func(_ audited, at time.Time) bool { return now.Sub(at) >= sparseQuiet })
}

func (u *toldUser) tell(what audited, now time.Time) (first bool, left int) {
	if u.knows(what, now) {
		u.left++
		return false, 0
	}
	u.told[what] = now
	left, u.left = u.left, 0
	return true, left
}
