package machine

import "time"

// watching is how a socket of an instance is watched for the end of its server.
type watching uint8

const (
	unwatched  watching = iota
	watched             // events lead to a probe
	blind               // there may be no event, so a timer leads to a probe
	checking            // a probe is in progress
	rechecking          // like checking, and another probe follows because of a hint
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

// watchConn watches the connection of an instance.
func (m *Machine) watchConn(in *instance) {
	m.unwatch(in, Registration)
	in.watches[Registration] = watched
	m.do(Watch{in.ref})
}

// hasEndpointWatched reports whether the handler requested a watch of the endpoint, and this is not the registration socket.
func (in *instance) hasEndpointWatched() bool {
	return in.registration.WatchEndpoint && in.endpoint() != in.info.SocketPath
}

// watchEndpoint watches the endpoint, if the handler requested that.
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

// probePause returns the random pause between two checks for which there is no event.
func (m *Machine) probePause() time.Duration {
	return probeInterval/2 + time.Duration(m.Chance*float64(probeInterval/2))
}

// check probes a socket of an instance. Only a refused connect proves that the plugin is gone: a process that ended may have passed its
// listening socket to another, and a connection may be closed for any reason.
func (m *Machine) check(in *instance, s Socket) {
	switch {
	case in == nil:
	case in.phase == Gone:
		m.hintOfUnlinked(in)
	case in.watches[s] == unwatched:
	case in.watches[s] == checking || in.watches[s] == rechecking:
		in.watches[s] = rechecking // the probe in progress may have begun before this hint
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
	if p.Failure != nil && p.Failure.isDead() {
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
		// There is no event if a process stops accepting on its endpoint without ending.
		m.lookAgain(in, p.Socket)
	}
	if again {
		m.check(in, p.Socket)
	}
}
