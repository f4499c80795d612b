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

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Actor is a caller whose calls are audited: a local process or another node.
type Actor interface {
	// Key is different for each actor; String describes the actor.
	Key() string
	fmt.Stringer
	// Attrs describe the actor in the log.
	Attrs() []any
}

// Auditor records who did what, as events and in the group "audit" of the log. Its methods are safe for concurrent use.
type Auditor struct {
	publish func(plugin.Event)
	log     *slog.Logger
	// The rates are separate, so that entries of one kind do not suppress those of another.
	denials, nodeDenials, calls, misses *entryRate
	seed                                maphash.Seed
}

// NewAuditor returns an auditor that passes its events to publish.
func NewAuditor(publish func(plugin.Event), log *slog.Logger) *Auditor {
	return &Auditor{
		publish: publish, log: log,
		denials: newEntryRate(maxEntries, maxAllEntries), nodeDenials: newEntryRate(maxEntries, maxAllEntries),
		calls: newEntryRate(maxCalls, 0), misses: newEntryRate(maxEntries, maxAllEntries),
		seed: maphash.MakeSeed(),
	}
}

// Done records a call that was allowed, and its result: nil or the error of the call.
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
	Plugin plugin.Name
	Fleet  bool // of any node
	Method string
}

func (p Call) String() string {
	if p.Plugin == (plugin.Name{}) {
		return "a plugin: that it does not name"
	}
	in := ""
	if p.Fleet {
		in = " in the fleet"
	}
	return shortName(p.Plugin) + in + ": " + short(p.Method)
}

// Called records a call of a plugin that ended with a code, unless an equal call was recorded less than repeatAfter ago. Callers choose the
// names of plugins and methods, so the number of entries about names that do not exist is bounded. All other calls are recorded, including
// canceled ones.
func (a *Auditor) Called(c Actor, call Call, reached bool, code codes.Code) {
	set := a.misses
	if reached && code != codes.Unimplemented {
		set = a.calls
	}
	if first, left := set.allow(audited{who: c.Key(), call: maphash.Comparable(a.seed, call), code: code}); first {
		a.record(c, slog.LevelInfo, entry{action: callAction, target: call.String(), result: resultOf(code), left: left})
	}
}

// Admit returns an error if an actor has made so many different calls within repeatAfter that further ones might not be recorded. It must
// not be called for root and the daemon's user.
func (a *Auditor) Admit(c Actor) error {
	if a.calls.count(c.Key()) < maxCalls-maxCallsAtOnce {
		return nil
	}
	err := status.Errorf(codes.ResourceExhausted, "more than %d different calls within %v are more than are recorded; call again later",
		maxCalls-maxCallsAtOnce, repeatAfter)
	if first, left := a.denials.allow(audited{who: c.Key(), action: callAction, code: codes.ResourceExhausted}); first {
		a.record(c, slog.LevelWarn, entry{
			action: callAction, result: resultOf(codes.ResourceExhausted), why: status.Convert(err).Message(), left: left,
		})
	}
	return err
}

// denied records a denied call, unless a denial of the same actor and action was recorded less than repeatAfter ago.
func (a *Auditor) denied(c Actor, action string, err error) {
	if first, left := a.denials.allow(audited{who: c.Key(), action: action}); first {
		a.record(c, slog.LevelWarn, entry{action: action, result: resultDenied, why: textOf(err), left: left})
	}
}

// DenyNode records that a call of another node was denied, and returns its error, which does not reveal whether there is such a plugin.
func (a *Auditor) DenyNode(c Actor, call Call) error {
	who := c.String()
	what := fmt.Sprintf("%s of plugin %s", short(call.Method), shortName(call.Plugin))
	if first, left := a.nodeDenials.allow(audited{who: c.Key(), action: what}); first {
		a.log.Warn("fleet: a call from another node was denied", "caller", who, "call", what, "leftOut", left)
		a.publish(plugin.Event{
			Time: time.Now(), Kind: plugin.EventFleetCallDenied, Message: fmt.Sprintf("%s may not call %s%s", who, what, leftOut(left)),
		})
	}
	return status.Errorf(codes.PermissionDenied, "%s may not call %s: no rule in fleet.serve.allow of the node allows it", who, what)
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
	left                        int // how many entries were suppressed before this one
}

// Results that are not names of codes: a call succeeded, or its caller does not have the role.
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
	a.log.Log(context.Background(), level, "audit", "event", string(plugin.EventAudit), slog.Group("audit", append(c.Attrs(),
		"action", e.action, "target", e.target, "result", e.result, "why", e.why, "leftOut", e.left)...))
	a.publish(plugin.Event{Time: time.Now(), Kind: plugin.EventAudit, Message: message})
}

// leftOut returns the suffix of an entry with the number of entries that were suppressed before it.
func leftOut(count int) string {
	if count == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d were left out before it)", count)
}

// maxShort is the maximum length in bytes of a caller's text in a message.
const maxShort = 128

// short returns text of a caller, shortened and valid.
func short(text string) string { return untrusted.ValidCut(text, maxShort) }

// shortName returns the name of a plugin as a caller gave it, shortened and valid.
func shortName(p plugin.Name) string {
	return plugin.Name{Type: short(p.Type), Name: short(p.Name)}.String()
}

// textOf returns the message of an error in one line, without its code.
func textOf(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*connect.Error](err); ok {
		text = e.Message()
	}
	return strings.ReplaceAll(untrusted.Valid(text), "\n", "; ")
}

const callAction = "CallPlugin"

// actionOf returns the name of a method, for example "LaunchPlugin".
func actionOf(procedure string) string { return path.Base(procedure) }

func targetOf(request any) string {
	switch m := request.(type) {
	case interface {
		GetType() string
		GetName() string
	}:
		return shortName(plugin.Name{Type: m.GetType(), Name: m.GetName()})
	case interface{ GetName() string }: // the name of a launched plugin
		return short(m.GetName())
	case *patchbayv1.AllocateDevicesRequest:
		return short(m.GetResource()) + " for " + short(m.GetOwner())
	case *patchbayv1.ReleaseDevicesRequest:
		return short(m.GetResource()) + " of " + short(m.GetOwner())
	}
	return ""
}

const (
	// repeatAfter is how long equal entries are suppressed.
	repeatAfter = time.Minute
	// maxEntries and maxCalls bound the entries about one user within repeatAfter. maxEntries is for entries with names that the user may
	// have invented, and maxCalls for calls that reached a plugin.
	maxEntries = 256
	maxCalls   = 16384
	// maxCallsAtOnce is how many calls one user may have in progress, see [h2proxy.DefaultLimits].
	maxCallsAtOnce = 2048
	// maxAllEntries bounds the entries with invented names of all users together, and maxUsers the number of users that are remembered.
	maxAllEntries = 4096
	maxUsers      = 1024
)

// audited identifies an entry: equal values are repetitions. A call, which contains invented names, is represented by its hash with a
// secret seed.
type audited struct {
	who, action string
	call        uint64
	code        codes.Code
}

// entryRate limits the number of entries per time and suppresses repetitions. It is a rate and not a quota: nothing is held or given back.
// It is safe for concurrent use.
type entryRate struct {
	perUser int
	// total limits the entries of all users. If it is 0, there is no limit, and a user who reaches perUser is not suppressed: the earlier
	// entries are forgotten instead.
	total int

	mu      sync.Mutex
	users   map[string]*userEntries
	since   time.Time // when the count in written began
	written int
}

func newEntryRate(perUser, total int) *entryRate {
	return &entryRate{perUser: perUser, total: total, users: map[string]*userEntries{}}
}

// userEntries are the recent entries about one user.
type userEntries struct {
	written    map[audited]time.Time
	suppressed int // entries since the last one that was written
	last       time.Time
	swept      time.Time // when old entries were last forgotten
}

// sweep forgets old entries, at most once a second.
func (u *userEntries) sweep(now time.Time) {
	if now.Sub(u.swept) >= time.Second {
		maps.DeleteFunc(u.written, func(_ audited, at time.Time) bool { return now.Sub(at) >= repeatAfter })
		u.swept = now
	}
}

// allow reports whether to write an entry, and how many entries about the same user were suppressed since the last one written.
func (r *entryRate) allow(what audited) (ok bool, suppressed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	u := r.user(what.who, now)
	if at, repeated := u.written[what]; repeated && now.Sub(at) < repeatAfter {
		u.suppressed++
		return false, 0
	}
	if len(u.written) >= r.perUser {
		u.sweep(now)
	}
	full := len(u.written) >= r.perUser
	if full && r.total == 0 {
		clear(u.written)
		full = false
	}
	if full || !r.takeTotal(now) {
		u.suppressed++
		return false, 0
	}
	u.written[what] = now
	suppressed, u.suppressed = u.suppressed, 0
	return true, suppressed
}

// count returns how many recent entries there are about a user.
func (r *entryRate) count(who string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.users[who]
	if u == nil {
		return 0
	}
	if len(u.written) >= r.perUser/2 {
		u.sweep(time.Now())
	}
	return len(u.written)
}

// takeTotal counts an entry, and reports false if total is reached. r.mu is held.
func (r *entryRate) takeTotal(now time.Time) bool {
	if now.Sub(r.since) >= repeatAfter {
		r.since, r.written = now, 0
	}
	if r.total > 0 && r.written == r.total {
		return false
	}
	r.written++
	return true
}

// user returns the entries about a user. If there are already maxUsers users, it forgets the least recently active one. r.mu is held.
func (r *entryRate) user(who string, now time.Time) *userEntries {
	u := r.users[who]
	if u == nil {
		if len(r.users) >= maxUsers {
			oldest := ""
			for other, o := range r.users {
				if oldest == "" || o.last.Before(r.users[oldest].last) {
					oldest = other
				}
			}
			delete(r.users, oldest)
		}
		u = &userEntries{written: map[audited]time.Time{}}
		r.users[who] = u
	}
	u.last = now
	return u
}
