package machine

import "time"

// watching is how the end of who accepts on one socket of an instance is noticed.
type watching uint8

const (
	unwatched  watching = iota
	watched             // by hints
	blind               // by looking now and then
	checking            // it is being found out whether anybody accepts
	rechecking          // the same, and a hint came meanwhile
)

var lookAgainAt = [...]TimerKind{Registration: LookAgain, Endpoint: LookAgainToo}

func (m *Machine) unwatch(in *instance, s Socket) {
	m.stop(in, lookAgainAt[s])
	if in.watches[s] != unwatched {
		in.watches[s] = unwatched
		m.do(Unwatch{in.ref, s})
	}
}

func (m *Machine) unwatchBoth(in *instance) {
	m.unwatch(in, Registration)
	m.unwatch(in, Endpoint)
}

// watchConn has the death of a plugin noticed through its connection.
func (m *Machine) watchConn(in *instance) {
	m.unwatch(in, Registration)
	in.watches[Registration] = watched
	m.do(Watch{in.ref})
}

// hasEndpointWatched says that its handler asked for its endpoint to be watched, and that this is another socket.
func (in *instance) hasEndpointWatched() bool {
	return in.registration.WatchEndpoint && in.endpoint() != in.info.SocketPath
}

// watchEndpoint has it noticed that nobody accepts on the endpoint any more, if the handler asked for that.
func (m *Machine) watchEndpoint(in *instance) {
	m.unwatch(in, Endpoint)
	if in.hasEndpointWatched() {
		in.watches[Endpoint] = watched
		m.check(in, Endpoint)
	}
}

func (m *Machine) lookAgain(in *instance, s Socket) {
	in.watches[s] = blind
	m.set(in, lookAgainAt[s], m.probePause())
}

// probePause is how long what nobody tells of is not looked at.
func (m *Machine) probePause() time.Duration {
	return probeInterval/2 + time.Duration(m.Chance*float64(probeInterval/2))
}

// check asks whether anybody accepts on a socket of an instance. A process that ended may have left its listening socket to another
// one, and a connection may be closed for any reason, so only a refused connect proves that the plugin is gone.
func (m *Machine) check(in *instance, s Socket) {
	switch {
	case in == nil:
	case in.phase == Gone:
		m.hintOfUnlinked(in)
	case in.watches[s] == unwatched:
	case in.watches[s] == checking || in.watches[s] == rechecking:
		in.watches[s] = rechecking // what is being found out may be older than this hint
	default:
		m.stop(in, lookAgainAt[s])
		in.watches[s] = checking
		probe := Probe{Ref: in.ref, Socket: s, Path: in.path(s), Type: in.announced.Type}
		if probe.Path == in.info.SocketPath {
			probe.Identity = in.info.Socket
		}
		m.do(probe)
	}
}

func (m *Machine) probed(p Probed) {
	in := m.byRef[p.Ref]
	if in == nil || in.phase == Gone || in.watches[p.Socket] != checking && in.watches[p.Socket] != rechecking {
		return
	}
	again := in.watches[p.Socket] == rechecking
	if p.Path != in.path(p.Socket) {
		in.watches[p.Socket] = watched
		m.check(in, p.Socket)
		return
	}
	if p.Failure != nil && p.Failure.nobody() {
		in.watches[p.Socket] = watched
		m.lost(in, p.Socket, p.Path, p.Failure, ByProbe)
		return
	}
	in.watches[p.Socket] = watched
	if in.phase == Superseded && p.Socket == Endpoint {
		in.tries = 0
	}
	if p.Watched {
		m.do(KeepProbe{in.ref, p.Socket})
	}
	if !p.Watched || p.Socket == Endpoint {
		// Nothing tells that a process which lives accepts on its endpoint no more.
		m.lookAgain(in, p.Socket)
	}
	if again {
		m.check(in, p.Socket)
	}
}
