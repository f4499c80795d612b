package access

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"path"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay"
	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// eventAudit: somebody did something on the control socket that takes more than the role read, or was denied it, or called a plugin from
// another node; says who, what and the result. Repeated denials, and repeated calls to plugins, are folded into one per minute.
const eventAudit reconciler.EventKind = "audit"

// eventFleetCallDenied: a call from another node was denied; names the caller. Repeats are folded into one per minute.
const eventFleetCallDenied reconciler.EventKind = "fleet-call-denied"

// Actor is a caller whose actions are audited.
type Actor interface {
	// Key is different for each actor; String describes the actor.
	Key() string
	fmt.Stringer
	// Attrs describe the actor in the log.
	Attrs() []any
}

// Auditor publishes who did what, as events and in the group "audit" of the log.
type Auditor struct {
	publish func(reconciler.Event)
	log     *slog.Logger
	// They are separate, so that no kind suppresses another one.
	denials, calls, misses *sparse
	seed                   maphash.Seed
}

// NewAuditor returns an auditor that passes its events to publish.
func NewAuditor(publish func(reconciler.Event), log *slog.Logger) *Auditor {
	return &Auditor{
		publish: publish, log: log,
		denials: newSparse(maxSparse, maxTold), calls: newSparse(maxCalled, 0), misses: newSparse(maxSparse, maxTold),
		seed: maphash.MakeSeed(),
	}
}

// Done records an action that was allowed; err is its result.
func (a *Auditor) Done(c Actor, action, target string, err error) {
	e := entry{action: action, target: target, result: resultOK}
	level := slog.LevelInfo
	if err != nil {
		e.result, e.why, level = connect.CodeOf(err).String(), textOf(err), slog.LevelWarn
	}
	a.record(c, level, e)
}

// Call is a call of a plugin, as its caller names it.
type Call struct {
	Plugin patchbay.PluginName
	Fleet  bool // of any node
	Method string
}

func (p Call) String() string {
	if p.Plugin == (patchbay.PluginName{}) {
		return "a plugin: that it does not name"
	}
	in := ""
	if p.Fleet {
		in = " in the fleet"
	}
	return shortName(p.Plugin) + in + ": " + short(p.Method)
}

// Called records a call that ended with a code, unless an equal one was recorded a short time ago. The number of calls that reached no
// plugin, or no method of it, is bounded, because callers choose these names. All others are recorded, including those that were canceled.
func (a *Auditor) Called(c Actor, call Call, reached bool, code codes.Code) {
	set := a.misses
	if reached && code != codes.Unimplemented {
		set = a.calls
	}
	if first, left := set.first(audited{who: c.Key(), call: maphash.Comparable(a.seed, call), code: code}); first {
		a.record(c, slog.LevelInfo, entry{action: callAction, target: call.String(), result: resultOf(code), left: left})
	}
}

// Admit returns an error if so many different calls of an actor, who is neither root nor the daemon's user, were recorded within a short
// time that only the calls that have begun can still be recorded.
func (a *Auditor) Admit(c Actor) error {
	if a.calls.count(c.Key()) < maxCalled-maxCallsAtOnce {
		return nil
	}
	err := status.Errorf(codes.ResourceExhausted, "more than %d different calls within %v are more than are recorded; call again later",
		maxCalled-maxCallsAtOnce, sparseQuiet)
	if first, left := a.denials.first(audited{who: c.Key(), action: callAction, code: codes.ResourceExhausted}); first {
		a.record(c, slog.LevelWarn, entry{
			action: callAction, result: resultOf(codes.ResourceExhausted), why: status.Convert(err).Message(), left: left,
		})
	}
	return err
}

// denied records an action that was denied, unless the same was recorded a short time ago. Text that callers choose does not tell
// actions apart.
func (a *Auditor) denied(c Actor, action string, err error) {
	if first, left := a.denials.first(audited{who: c.Key(), action: action}); first {
		a.record(c, slog.LevelWarn, entry{action: action, result: resultDenied, why: textOf(err), left: left})
	}
}

// resultOf returns the name of a code.
func resultOf(code codes.Code) string {
	if code == codes.OK {
		return resultOK
	}
	return connect.Code(code).String()
}

type entry struct {
	action, target, result, why string
	left                        int // how many were left out before it
}

// The results of what was not refused, and of what was for want of a role. The others are names of codes.
const resultOK, resultDenied = "ok", "denied"

func (a *Auditor) record(c Actor, level slog.Level, e entry) {
	message := c.String() + ": " + e.action
	if e.target != "" {
		message += " " + e.target
	}
	message += ": " + e.result
	if e.why != "" {
		message += ": " + e.why
	}
	message += leftOut(e.left)
	a.log.Log(context.Background(), level, "audit", "event", string(eventAudit), slog.Group("audit", append(c.Attrs(),
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
func short(text string) string { return untrusted.Valid(untrusted.Cut(text, maxShort)) }

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
	return strings.ReplaceAll(untrusted.Valid(text), "\n", "; ")
}

const callAction = "CallPlugin"

// actionOf returns what a method does, for example "LaunchPlugin".
func actionOf(procedure string) string { return path.Base(procedure) }

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
	// Within that time so much is told of one user: of what he may have made up, and of calls that reached a plugin.
	maxSparse = 256
	maxCalled = 16384
	// maxCallsAtOnce is how many calls one user may have in progress, see [frames.DefaultLimits].
	maxCallsAtOnce = 2048
	// maxTold bounds what may be made up of all users, and maxUsers how many users are remembered.
	maxTold  = 4096
	maxUsers = 1024
)

// audited is what is told of: equal values are alike. What a caller has made up is in it as a hash of which he does not know the seed.
type audited struct {
	who, action string
	call        uint64
	code        codes.Code
}

// sparse says what to tell of things that may come in floods. It is safe for concurrent use.
type sparse struct {
	most int // of one user
	// total is how much of all users; 0: they are not bounded together, and of one who has most, all is told, also what was told before.
	total int

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
	told  map[audited]time.Time
	left  int
	last  time.Time
	swept time.Time // when what was told long ago was forgotten
}

// sweep forgets what was told long ago, if that was not done a moment ago.
func (u *toldUser) sweep(now time.Time) {
	if now.Sub(u.swept) >= time.Second {
		maps.DeleteFunc(u.told, func(_ audited, at time.Time) bool { return now.Sub(at) >= sparseQuiet })
		u.swept = now
	}
}

// first says whether to tell something because nothing like it was told a short time ago, and how much of the same user was left out
// since something was told before it. It does not if too much of the user, or of all, was told, where that is bounded.
func (s *sparse) first(what audited) (first bool, left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	u := s.user(what.who, now)
	if at, told := u.told[what]; told && now.Sub(at) < sparseQuiet {
		u.left++
		return false, 0
	}
	if len(u.told) >= s.most {
		u.sweep(now)
	}
	full := len(u.told) >= s.most
	if full && s.total == 0 {
		clear(u.told)
		full = false
	}
	if full || !s.room(now) {
		u.left++
		return false, 0
	}
	u.told[what] = now
	left, u.left = u.left, 0
	return true, left
}

// count returns how much was told of a user within a short time.
func (s *sparse) count(who string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.users[who]
	if u == nil {
		return 0
	}
	if len(u.told) >= s.most/2 {
		u.sweep(time.Now())
	}
	return len(u.told)
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

// Denials publishes the calls of other nodes that were denied.
type Denials struct {
	publish func(reconciler.Event)
	log     *slog.Logger
	told    *sparse
}

// NewDenials returns a Denials that passes its events to publish.
func NewDenials(publish func(reconciler.Event), log *slog.Logger) *Denials {
	return &Denials{publish, log, newSparse(maxSparse, maxTold)}
}

// Deny records a denied call and returns its error, which does not reveal whether there is such a plugin.
func (d *Denials) Deny(c Actor, call Call) error {
	who := c.String()
	what := fmt.Sprintf("%s of plugin %s", short(call.Method), shortName(call.Plugin))
	if first, left := d.told.first(audited{who: c.Key(), action: what}); first {
		d.log.Warn("fleet: a call from another node was denied", "caller", who, "call", what, "leftOut", left)
		d.publish(reconciler.Event{
			Time: time.Now(), Kind: eventFleetCallDenied, Message: fmt.Sprintf("%s may not call %s%s", who, what, leftOut(left)),
		})
	}
	return status.Errorf(codes.PermissionDenied, "%s may not call %s: no rule in fleet.serve.allow of the node allows it", who, what)
}
