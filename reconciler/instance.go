package reconciler

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/trust"
)

const (
	backoffMin = 100 * time.Millisecond
	backoffMax = 2 * time.Minute
	// answerWindow is the moment in which something that has just appeared is expected to answer: a refused dial is retried at once.
	answerWindow = 100 * time.Millisecond
	// replaceWindow is how long an instance whose socket was replaced is not given up yet. It is longer than a healthy plugin takes to
	// register, also on a busy machine, so that one which takes over from another leaves no gap; the path leads to the new one anyway.
	replaceWindow = time.Second
)

// instance is one appearance of a socket and what is known of the plugin behind it. All fields are guarded by Reconciler.mu, except
// that conn belongs to whoever took it.
type instance struct {
	info   cache.PluginInfo
	source Source
	// rank orders the instances of one name: the greater is the newer. It is that of the appearance, also after a restart; what appears
	// then is above all that is remembered, but see yield.
	rank uint64
	// found: its socket was there when this process began, nobody remembers it, its birth is known, and it has not answered yet.
	found bool
	state State
	since time.Time

	// missing is set while its socket is not where it was, and it is not known yet whether it was moved; it gives the instance up.
	missing *time.Timer
	// gone: its socket went, or nobody accepts on it. It never comes back; a socket that lives on gets a new instance.
	gone bool
	// why says, once it is gone, what became of it.
	why string
	// asking: it waits for a slot or is being asked who it is. cancel abandons that.
	asking bool
	cancel context.CancelFunc
	// deciding: it is being asked and may answer any moment. Its lane, and an instance that it replaces at its path, wait for it.
	deciding bool
	// settling: it is being told of a refusal; walking: its lane is at work on it. No attempt starts before that has ended.
	settling, walking bool
	// judgeAnew: what its handler judges by changed while its lane was at work on it.
	judgeAnew bool

	// attempt is the one that is under way; trace is the trace that its span, and those of the attempts after it, belong to.
	attempt attempt
	trace   trace.SpanContext

	attempts  int
	nextRetry time.Time
	retry     *time.Timer
	lastErr   error
	// toldText is the failure of which an event told last.
	toldText string

	// announced is what it said of itself last; valid if lane is not nil.
	announced Info
	lane      *lane
	// conn is the connection on which it announced itself, not nil as long as it waits for its turn in the lane.
	conn Conn
	peer Peer
	// refused is what it announced last, as far as that names it, if it was refused for what it announced; announced is what counts.
	refused Info
	// account is whose plugin it is, as far as it has answered.
	account trust.Account
	// unclaimed: there is no handler for its type, and it was told so or is left alone.
	unclaimed bool
	// barred: it may not register what it announced. It stands in its lane for that to change and counts for nothing there.
	barred bool
	// handed: its handler has been given it, now or before it was superseded; given is the endpoint that the handler has.
	handed bool
	given  string

	// id is its AllocID; recorded says that the registry has it under that ID, listed with which endpoint, and hidden that it is not
	// given out.
	id           string
	recorded     bool
	listed       string
	hidden       bool
	registeredAt time.Time
	// restored is the record from before a restart of the host, as long as it is not settled whether this is the same instance.
	restored *Instance
	// replacement is the instance that stood at the same path when this one went. replaces are those that await this one's answer: more than
	// one if it moved on before it gave one.
	replacement *instance
	replaces    []*instance
	// registration is what its handler found out about it when it was registered last.
	registration cache.Registration
	// watches are for its death: of who accepts on its registration socket and, if its handler asks for it, on its endpoint.
	registrationWatch, endpointWatch watch
}

// named is what people call it: by what it announced last. mu is held.
func (in *instance) named() Info {
	if in.refused.Type != "" {
		return in.refused
	}
	return in.announced
}

// record describes the instance. mu is held.
func (in *instance) record(endpoint string, peer Peer) Instance {
	return Instance{
		ID: in.id, Type: in.announced.Type, Name: in.announced.Name, Versions: in.announced.Versions,
		Endpoint: endpoint, SocketPath: in.info.SocketPath, Socket: in.info.Socket, Peer: peer,
		Source: in.source, Rank: in.recordedRank(), RegisteredAt: in.registeredAt, Account: in.account, Registration: in.registration,
	}
}

// recordedRank returns the rank for the record: zero if the one it was restored from has none, since the order of records tells again.
func (in *instance) recordedRank() uint64 {
	if in.rank < rankStep {
		return 0
	}
	return in.rank
}

// held says that the handler has the instance.
func (in *instance) held() bool { return in.lane != nil && in.lane.held == in }

// progress sets the state of an attempt, unless the instance is registered all the while.
func (in *instance) progress(state State) {
	if !in.held() || in.state != StateRegistered {
		in.set(state)
	}
}

func (in *instance) set(state State) {
	if in.state != state {
		in.state = state
		in.since = time.Now()
	}
}

// rest ends what the instance has under way: an attempt, a call to the plugin, timers, the watch of its process. mu is held.
func (in *instance) rest() {
	in.stopRetry()
	if in.cancel != nil {
		in.cancel()
	}
	in.stopMissing()
	in.unwatch()
}

func (in *instance) stopMissing() {
	if in.missing != nil {
		in.missing.Stop()
		in.missing = nil
	}
}

func (in *instance) unwatch() {
	in.registrationWatch.end()
	in.endpointWatch.end()
}

func (in *instance) stopRetry() {
	if in.retry != nil {
		in.retry.Stop()
		in.retry = nil
	}
	in.nextRetry = time.Time{}
}

// ready says that it waits for its turn in the lane.
func (in *instance) ready() bool { return in.conn != nil }

// awaited says that its replacement may answer any moment.
func (in *instance) awaited() bool {
	r := in.replacement
	return r != nil && !r.gone && slices.Contains(r.replaces, in)
}

// takeConn takes the connection over; the instance is no longer ready.
func (in *instance) takeConn() Conn {
	conn := in.conn
	in.conn = nil
	return conn
}

func (in *instance) version() string {
	switch {
	case in.registration.Version != "":
		return in.registration.Version
	case len(in.announced.Versions) > 0:
		return in.announced.Versions[0]
	}
	return ""
}

func (in *instance) endpoint() string {
	if in.announced.Endpoint != "" {
		return in.announced.Endpoint
	}
	return in.info.SocketPath
}

// backoff returns how long to wait after the given number of failed attempts.
func backoff(attempts int) time.Duration {
	d := backoffMax
	if attempts < 12 {
		d = min(backoffMin<<max(attempts-1, 0), backoffMax)
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
