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

	"github.com/patchbay-dev/patchbay"
	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// eventAudit: somebody did something on the control socket that takes more than the role read, or was denied it, or called a plugin from
// another node; says who, what and the result. Repeated denials, and repeated calls to plugins, are folded into one per minute.
const eventAudit reconciler.EventKind = "audit"

// actor is who did something.
type actor interface {
	// name tells actors apart, and String says who it is, for people.
	name() string
	fmt.Stringer
	// attrs say the same for the log.
	attrs() []any
}

// auditor makes known who did what, as events and in the group "audit" of the log.
type auditor struct {
	publish func(reconciler.Event)
	log     *slog.Logger
	// They are apart, so that no kind can keep another one from being told.
	denials, calls, plugins, cut, misses *sparse
}

func newAuditor(publish func(reconciler.Event), log *slog.Logger) *auditor {
	return &auditor{
		publish: publish, log: log,
		denials: newSparse(maxSparse, maxTold), calls: newSparse(maxCalled, 0), plugins: newSparse(maxPlugins, 0),
		cut: newSparse(maxSparse, maxTold), misses: newSparse(maxSparse, maxTold),
	}
}

// done tells of an action that was allowed. The error is its result.
func (a *auditor) done(c actor, action, target string, err error) {
	e := entry{action: action, target: target, result: resultOK}
	level := slog.LevelInfo
	if err != nil {
		e.result, e.why, level = connect.CodeOf(err).String(), textOf(err), slog.LevelWarn
	}
	a.tell(c, level, e)
}

// called tells of a call that ended with a code, unless one like it was told a short time ago. A first call of what exists is always told:
// by its method or, of a user who calls a great many, by its plugin. Of calls that reached no plugin, or no method of it, whose names
// callers make up, there is a bounded number. Whether a method exists that was called and cut off, nobody knows: such calls do not crowd
// out others.
func (a *auditor) called(c actor, plugin, method string, reached bool, code codes.Code) {
	what := audited{who: c.name(), plugin: plugin, method: method, code: code}
	exists := reached && code != codes.Unimplemented
	set := a.misses
	switch {
	case exists && (code == codes.Canceled || code == codes.DeadlineExceeded):
		set = a.cut
	case exists:
		set = a.calls
	}
	first, left, full := set.first(what)
	if full && exists {
		method = "a further method"
		first, left, _ = a.plugins.first(audited{who: what.who, plugin: plugin})
	}
	if first {
		a.tell(c, slog.LevelInfo, entry{action: actionCall, target: plugin + ": " + method, result: resultOf(code), left: left})
	}
}

// denied tells of an action that was not allowed, unless the same was told a short time ago. What the caller can make up is no part of it.
func (a *auditor) denied(c actor, action string, err error) {
	if first, left, _ := a.denials.first(audited{who: c.name(), method: action}); first {
		a.tell(c, slog.LevelWarn, entry{action: action, result: resultDenied, why: textOf(err), left: left})
	}
}

// name tells callers apart.
func (c *caller) name() string { return fmt.Sprint(c.peer.UID, c.unknown == nil) }

func (c *caller) String() string {
	if c.unknown != nil {
		return "somebody unknown"
	}
	return fmt.Sprintf("user %d, group %d, process %d", c.peer.UID, c.peer.GID, c.peer.PID)
}

func (c *caller) attrs() []any { return []any{"uid", c.peer.UID, "gid", c.peer.GID, "pid", c.peer.PID} }

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

func (a *auditor) tell(c actor, level slog.Level, e entry) {
	message := c.String() + ": " + e.action
	if e.target != "" {
		message += " " + e.target
	}
	message += ": " + e.result
	if e.why != "" {
		message += ": " + e.why
	}
	message += leftOut(e.left)
	a.log.Log(context.Background(), level, "audit", "event", string(eventAudit), slog.Group("audit", append(c.attrs(),
		"action", e.action, "target", e.target, "result", e.result, "why", e.why, "leftOut", e.left)...))
	a.publish(reconciler.Event{Time: time.Now(), Kind: eventAudit, Message: message})
}

// leftOut says of what is told sparsely how many were left out before it.
func leftOut(count int) string {
	if count == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d were left out before it)", count)
}

// maxShort is the greatest length in bytes of what a caller says, when it is repeated.
const maxShort = 128

// short returns text of a caller for people.
func short(text string) string {
	if len(text) > maxShort {
		text = text[:maxShort] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}

// shortName returns the name of a plugin that a caller has said.
func shortName(p patchbay.PluginName) string {
	return patchbay.PluginName{Type: short(p.Type), Name: short(p.Name)}.String()
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
	case interface {
		GetType() string
		GetName() string
	}:
		return shortName(patchbay.PluginName{Type: m.GetType(), Name: m.GetName()})
	case interface{ GetName() string }: // a launched plugin
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
	// Within that time so much is told of one user: of what he may have made up, of the methods that he called, and of the plugins.
	maxSparse  = 256
	maxCalled  = 1024
	maxPlugins = 16384
	// maxTold bounds what may be made up of all users, and maxUsers how many users are remembered.
	maxTold  = 4096
	maxUsers = 1024
)

// audited is what is told of: equal values are alike.
type audited struct {
	who            string
	plugin, method string
	code           codes.Code
}

// sparse says what to tell of things that may come in floods. It is safe for concurrent use.
type sparse struct {
	most  int // of one user
	total int // of all users; 0: they are not bounded together

	mu    sync.Mutex
	users map[string]*toldUser
	since time.Time // since when told was told
	told  int
}

func newSparse(most, total int) *sparse {
	return &sparse{most: most, total: total, users: map[string]*toldUser{}}
}

// toldUser is what was told of one user.
type toldUser struct {
	told map[audited]time.Time
	left int
	last time.Time
}

// first says whether to tell something because nothing like it was told a short time ago, and how much of the same user was left out
// since something was told before it. It is full if it would be, and too much of the user, or of all, was told.
func (s *sparse) first(what audited) (first bool, left int, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	u := s.user(what.who, now)
	if at, told := u.told[what]; told && now.Sub(at) < sparseQuiet {
		u.left++
		return false, 0, false
	}
	if len(u.told) >= s.most {
		maps.DeleteFunc(u.told, func(_ audited, at time.Time) bool { return now.Sub(at) >= sparseQuiet })
	}
	if len(u.told) >= s.most || !s.room(now) {
		u.left++
		return false, 0, true
	}
	u.told[what] = now
	left, u.left = u.left, 0
	return true, left, false
}

// room takes one of the total that may be told in the present time. mu is held.
func (s *sparse) room(now time.Time) bool {
	if now.Sub(s.since) >= sparseQuiet {
		s.since, s.told = now, 0
	}
	if s.total > 0 && s.told == s.total {
		return false
	}
	s.told++
	return true
}

// user returns what was told of a user, for whom the one makes room who was silent longest. mu is held.
func (s *sparse) user(who string, now time.Time) *toldUser {
	u := s.users[who]
	if u == nil {
		if len(s.users) >= maxUsers {
			silent := ""
			for other, o := range s.users {
				if silent == "" || o.last.Before(s.users[silent].last) {
					silent = other
				}
			}
			delete(s.users, silent)
		}
		u = &toldUser{told: map[audited]time.Time{}}
		s.users[who] = u
	}
	u.last = now
	return u
}
