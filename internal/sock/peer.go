package sock

// Peer is the process at the other end of a connection. For one that was made with [Dial] that is the process which called listen, which
// may differ from the one that accepts (socket activation, inherited sockets). It is comparable.
type Peer struct {
	// PID is zero if the process cannot be seen from here: it lives in another PID namespace, or the system does not say.
	PID int
	// StartTime is the start of the process in clock ticks after boot (field 22 of proc_pid_stat(5)). Together with PID and [BootID] it names
	// a process for good. It is zero if PID is, or if the process is gone already.
	StartTime uint64
	UID, GID  uint32
}
