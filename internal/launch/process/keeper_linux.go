package process

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// keeper is the parent process of a surviving process. It holds the pipes of that process, reads its output, and serves one host at a time.
type keeper struct {
	process  *Process
	about    fromKeeper
	out, err *outputBuffer
	free     chan struct{} // holds one value while no host is connected

	mu   sync.Mutex // guards the fields below
	host *wire      // nil if none is connected
}

// runKeeper is the main function of a keeper. Standard input is connected to the host that starts the process.
func runKeeper() {
	host, order, ok := takeOrder()
	if !ok {
		return
	}
	order.Start.ExtraFiles = host.files
	k, listener, err := newKeeper(order)
	host.closeFiles()
	if err != nil {
		_ = host.send(failureOf(err))
		return
	}
	k.run(host, listener)
}

func failureOf(err error) fromKeeper {
	answer := fromKeeper{Error: err.Error()}
	errors.As(err, &answer.Errno)
	return answer
}

// newKeeper starts the process. The watchdog of the keeper's own group ends the process if the keeper ends.
func newKeeper(order toKeeper) (*keeper, *net.UnixListener, error) {
	// The socket has a temporary name until it listens.
	hidden := order.Socket + ".new"
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	listener.SetUnlinkOnClose(false)
	order.Start.Survive = false
	order.Start.Stdin = func() ([]byte, error) { return order.Input, nil }
	order.Start.Remove = append(order.Start.Remove, order.Socket, hidden)
	if own, err := sock.Stat(hidden); err == nil {
		sockets := map[string]plugin.SocketID{order.Socket: own.ID, hidden: own.ID}
		maps.Copy(sockets, order.Start.Sockets)
		order.Start.Sockets = sockets
	}
	group := &Group{Cgroup: order.Cgroup}
	p, err := group.Start(*order.Start)
	if err != nil {
		return nil, nil, errors.Join(err, os.Remove(hidden), group.Close(context.Background()))
	}
	k := &keeper{process: p, out: &outputBuffer{from: p.stdout}, err: &outputBuffer{from: p.stderr}, free: make(chan struct{}, 1)}
	k.about = fromKeeper{Name: p.spec.Name, Data: p.spec.Data, PID: p.pid}
	if s, ok := readStat(p.pid); ok {
		k.about.Start = s.start
	}
	if c, ok := p.body.(*child); ok && c.leaf != nil {
		k.about.Cgroup, k.about.Dir = c.leaf.path, c.leaf.dir
	}
	if err := os.Rename(hidden, order.Socket); err != nil {
		return nil, nil, errors.Join(err, p.Terminate(context.Background(), Grace{}), group.Close(context.Background()))
	}
	return k, listener, nil
}

func (k *keeper) run(first *wire, listener *net.UnixListener) {
	var pumps sync.WaitGroup
	pumps.Go(k.out.pump)
	pumps.Go(k.err.pump)
	attached := k.attach(first) // before the wait below, so that all output reaches the host
	go k.serve(first, attached)
	go func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			go k.accept(conn)
		}
	}()
	<-k.process.done
	pumps.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.host != nil {
		code, sig := status(k.process.err)
		_ = k.host.send(fromKeeper{Ended: true, Code: code, Signal: sig})
	}
}

func status(err error) (int, syscall.Signal) {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0, 0
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return -1, ws.Signal()
	}
	return exit.ExitCode(), 0
}

// accept serves a later host, which must have the same user. Only one host is served at a time.
func (k *keeper) accept(conn *net.UnixConn) {
	defer conn.Close()
	later, err := sock.PeerOf(conn)
	if err != nil || int(later.UID) != os.Geteuid() && later.UID != 0 {
		return
	}
	w := newWire(conn)
	const patience = time.Second // to notice that the last host has gone
	select {
	case <-k.free:
		k.serve(w, k.attach(w))
	case <-time.After(patience): //nolint:forbidigo // the bound of one wait
		_ = w.send(fromKeeper{Busy: true})
	}
}

// serve serves an attached host until it disconnects.
func (k *keeper) serve(w *wire, attached bool) {
	defer func() { k.free <- struct{}{} }()
	defer w.conn.Close()
	for attached {
		var order toKeeper
		if err := w.decoder.Decode(&order); err != nil {
			break
		}
		k.process.body.end(order.Step)
	}
	k.mu.Lock()
	k.host = nil
	k.mu.Unlock()
	k.out.attach(nil)
	k.err.attach(nil)
}

// attach sends pipes for the output of the process to a host.
func (k *keeper) attach(w *wire) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs pipe
	out, err := newPipe(1)
	if err == nil {
		errs, err = newPipe(1)
	}
	if err == nil {
		err = w.send(k.about, out.read, errs.read)
	}
	if err != nil {
		out.close()
		errs.close()
		return false
	}
	out.closeRead()
	errs.closeRead()
	k.host = w
	k.out.attach(out.write)
	k.err.attach(errs.write)
	return true
}

// outputBuffer reads one output of the process continuously. It keeps the last keptOutput bytes that no host has read.
type outputBuffer struct {
	from *os.File

	mu   sync.Mutex // guards the fields below
	to   *os.File   // nil if no host is connected
	kept []byte
}

const (
	keptOutput = 32 << 10             // fits into a new pipe
	hostSlow   = 5 * time.Millisecond // how long a slow host may block the process
	hostLast   = time.Second          // the same after the process has ended
)

func (o *outputBuffer) pump() {
	buf := make([]byte, keptOutput)
	for {
		n, err := o.from.Read(buf)
		if n > 0 {
			o.mu.Lock()
			o.kept = append(o.kept, buf[:n]...)
			o.flush(hostSlow)
			o.mu.Unlock()
		}
		if err != nil {
			break
		}
	}
	_ = o.from.Close()
	o.mu.Lock()
	o.flush(hostLast)
	o.mu.Unlock()
	o.attach(nil)
}

func (o *outputBuffer) attach(to *os.File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.to != nil {
		_ = o.to.Close()
	}
	o.to = to
	o.flush(hostSlow)
}

// flush writes the kept output to the host, and blocks for at most patience. The caller holds the lock.
func (o *outputBuffer) flush(patience time.Duration) {
	if o.to != nil && len(o.kept) > 0 {
		// First write without a deadline as much as fits, because after a deadline nothing is written.
		_ = sock.Control(o.to, func(fd int) error {
			n, err := unix.Write(fd, o.kept)
			o.kept = o.kept[max(n, 0):]
			return err
		})
	}
	if o.to != nil && len(o.kept) > 0 {
		_ = o.to.SetWriteDeadline(time.Now().Add(patience))
		n, _ := o.to.Write(o.kept)
		o.kept = o.kept[n:]
	}
	if len(o.kept) > keptOutput {
		o.kept = o.kept[len(o.kept)-keptOutput:]
	}
	if len(o.kept) == 0 {
		o.kept = nil
	}
}

// toKeeper is a message from a host to a keeper or reaper. The first one, from the host that starts it, has Start; the others have a Step.
type toKeeper struct {
	Start  *Spec  `json:"start,omitempty"` // its ExtraFiles come with the message
	Input  []byte `json:"input,omitempty"` // of the program
	Cgroup string `json:"cgroup,omitempty"`
	Socket string `json:"socket,omitempty"`

	V1 []string `json:"v1,omitempty"` // the cgroups of version 1 in which a reaper starts the process

	Step step `json:"step,omitempty"`
}

// fromKeeper is a message from a keeper to a host: first a description of the process, with the pipes of its output, or an error; last its
// exit status. A reaper sends the process ID and, last, the descendants that it killed.
type fromKeeper struct {
	Name   string `json:"name,omitempty"`
	Data   []byte `json:"data,omitempty"`
	PID    int    `json:"pid,omitempty"`
	Start  uint64 `json:"start,omitempty"`
	Cgroup string `json:"cgroup,omitempty"` // as in proc_pid_cgroup(5), empty if there is none
	Dir    string `json:"dir,omitempty"`    // of that cgroup

	Error string        `json:"error,omitempty"`
	Errno syscall.Errno `json:"errno,omitempty"`
	Busy  bool          `json:"busy,omitempty"` // another host holds it

	Left   []int          `json:"left,omitempty"`
	Ended  bool           `json:"ended,omitempty"`
	Code   int            `json:"code,omitempty"`
	Signal syscall.Signal `json:"signal,omitempty"`
}

// wire is a connection between a host and a keeper: a sequence of JSON values. The first one may come with files.
type wire struct {
	conn    *net.UnixConn
	decoder *json.Decoder
	files   []*os.File
}

func newWire(conn *net.UnixConn) *wire {
	w := &wire{conn: conn}
	w.decoder = json.NewDecoder(w)
	return w
}

// Read implements [io.Reader], and adds received files to w.files.
func (w *wire) Read(b []byte) (int, error) {
	const most = 253 // files in one message, by the kernel
	oob := make([]byte, unix.CmsgSpace(most*4))
	n, oobn, _, _, err := w.conn.ReadMsgUnix(b, oob)
	if oobn > 0 {
		messages, merr := unix.ParseSocketControlMessage(oob[:oobn])
		for _, message := range messages {
			fds, ferr := unix.ParseUnixRights(&message)
			merr = cmp.Or(merr, ferr)
			for _, fd := range fds {
				w.files = append(w.files, os.NewFile(uintptr(fd), "received"))
			}
		}
		err = cmp.Or(merr, err)
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}

// send sends a value. It blocks for at most a second if the peer does not read.
func (w *wire) send(v any, files ...*os.File) error { return w.sendWithin(time.Second, v, files...) }

// sendWithin is send with another limit.
func (w *wire) sendWithin(patience time.Duration, v any, files ...*os.File) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := w.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			if err := sock.Control(f, func(fd int) error { fds[i] = fd; return nil }); err != nil {
				return err
			}
		}
		oob = unix.UnixRights(fds...)
	}
	n, _, err := w.conn.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = w.conn.Write(b[n:])
	}
	return err
}

func (w *wire) close() {
	w.closeFiles()
	_ = w.conn.Close()
}

func (w *wire) closeFiles() {
	for _, f := range w.files {
		_ = f.Close()
	}
	w.files = nil
}

// newWires returns the two ends of a connection. The peer's end is a file for another process.
func newWires() (own *wire, peer *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	peer = os.NewFile(uintptr(fds[1]), "peer")
	own, err = fileWire(os.NewFile(uintptr(fds[0]), "own"))
	if err != nil {
		_ = peer.Close()
		return nil, nil, err
	}
	return own, peer, nil
}

func fileWire(f *os.File) (*wire, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("a %T instead of a Unix socket", conn)
	}
	return newWire(unixConn), nil
}

// startWithOrder calls start to start a keeper or reaper, sends it the order and files, and receives its answer with answered files.
func startWithOrder(
	start func(stdin *os.File) error, order toKeeper, files []*os.File, answered int,
) (w *wire, about fromKeeper, err error) {
	w, peer, err := newWires()
	if err != nil {
		return nil, about, err
	}
	err = start(peer)
	_ = peer.Close()             // so that this process notices when the other one closes its end
	const patience = time.Minute // a busy machine that starts hundreds of processes takes many seconds for each
	if err == nil {
		err = w.sendWithin(patience, order, files...)
	}
	if err == nil {
		_ = w.conn.SetReadDeadline(time.Now().Add(patience))
		about, err = receiveAnswer(w, answered)
	}
	if err != nil {
		w.close()
		return nil, about, err
	}
	return w, about, nil
}

// takeOrder receives the first message in a keeper or reaper. It returns the connection to the host and the order.
func takeOrder() (host *wire, order toKeeper, ok bool) {
	host, err := fileWire(os.NewFile(0, "host"))
	if err != nil {
		return nil, order, false
	}
	err = host.decoder.Decode(&order)
	return host, order, err == nil && order.Start != nil
}

func receiveAnswer(w *wire, files int) (about fromKeeper, err error) {
	if err := w.decoder.Decode(&about); err != nil {
		return about, fmt.Errorf("the keeper of a process does not answer: %w", err)
	}
	_ = w.conn.SetReadDeadline(time.Time{})
	switch {
	case about.Error != "":
		return about, &keeperError{about.Error, about.Errno}
	case !about.Busy && len(w.files) != files:
		return about, fmt.Errorf("the keeper of a process sent %d files instead of %d", len(w.files), files)
	}
	return about, nil
}

type keeperError struct {
	text  string
	errno syscall.Errno
}

func (e *keeperError) Error() string { return e.text }
func (e *keeperError) Unwrap() error { return e.errno }
