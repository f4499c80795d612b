package sdk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/grpcsock"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// identifyTimeout bounds the question to a living socket which plugin it is. It is shorter than the time for which others wait to decide
// about the path.
const identifyTimeout = 2 * time.Second

// predecessor is the older instance whose place this one took.
type predecessor struct{ process *os.Process }

// identify makes sure that the same plugin is at the other end, in a process that can be told to end: the one that the kernel names as the
// listener says that it answers, and that the socket is its own, which those behind a socket of systemd or of a proxy do not.
func identify(ctx context.Context, living *net.UnixConn, p Plugin) (*predecessor, error) {
	before, err := sock.PeerOf(living)
	if err != nil {
		return nil, err
	}
	if before.PID == 0 || before.Start == 0 {
		return nil, errors.New("its process cannot be seen from here; stop it first")
	}
	info, pid, err := ask(ctx, living)
	if err != nil {
		return nil, fmt.Errorf("pid %d does not say which plugin it is; stop it first: %w", before.PID, err)
	}
	if info.Type != p.Type || info.Name != p.Name {
		return nil, fmt.Errorf("it is another plugin, %s/%s (pid %d); choose another path", info.Type, info.Name, before.PID)
	}
	if pid != before.PID {
		return nil, fmt.Errorf("pid %d made the socket, and it is not certain who serves it; stop it first", before.PID)
	}
	if pid == os.Getpid() {
		return nil, errors.New("this process serves it already")
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return nil, err
	}
	// FindProcess holds on to a process (pidfd). If it is the peer still, it was the peer when it was found, and its number cannot pass on.
	if after, err := sock.PeerOf(living); err != nil || after != before {
		return nil, errors.Join(fmt.Errorf("pid %d has just ended; try again", pid), err, process.Release())
	}
	if err := process.Signal(syscall.Signal(0)); err != nil {
		return nil, errors.Join(fmt.Errorf("pid %d cannot be asked to stop; stop it first: %w", pid, err), process.Release())
	}
	return &predecessor{process}, nil
}

func ask(ctx context.Context, living *net.UnixConn) (*registerapi.PluginInfo, int, error) {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	// The connection is duplicated because the gRPC client closes its own, and the kernel is asked about this one afterwards.
	conn, err := duplicate(living)
	if err != nil {
		return nil, 0, err
	}
	defer conn.Close()   // again, but for a connection that was never used
	var used atomic.Bool // there is one connection to ask about, and no other
	client, err := grpcsock.Dial(living.RemoteAddr().String(), grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
		if used.Swap(true) {
			return nil, net.ErrClosed
		}
		return conn, nil
	}))
	if err != nil {
		return nil, 0, err
	}
	defer client.Close()
	var header metadata.MD
	info, err := registerapi.NewRegistrationClient(client).GetInfo(ctx, &registerapi.InfoRequest{}, grpc.Header(&header))
	if err != nil {
		return nil, 0, err
	}
	told := header.Get(pidHeader)
	if len(told) != 1 {
		return info, 0, nil
	}
	pid, err := strconv.Atoi(told[0])
	return info, pid, err
}

func duplicate(conn *net.UnixConn) (net.Conn, error) {
	f, err := conn.File()
	if err != nil {
		return nil, err
	}
	c, err := net.FileConn(f)
	return c, errors.Join(err, f.Close())
}

// end tells the older instance to drain and end. One that has ended already is not an error.
func (p *predecessor) end() error {
	err := p.process.Signal(syscall.SIGTERM)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	p.forget()
	return err
}

// forget releases what is held of the process. p may be nil.
func (p *predecessor) forget() {
	if p != nil {
		_ = p.process.Release() // frees a descriptor
	}
}
