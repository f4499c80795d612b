package fleet_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// proxy passes TCP connections on until it is cut. Those of a cut proxy are neither closed nor served: that is what a lost network is like.
type proxy struct {
	url string

	mu     sync.Mutex
	target string
	cond   *sync.Cond
	cut    bool
	gone   bool
	conns  map[net.Conn]bool
	done   sync.WaitGroup
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	scheme, host, _ := strings.Cut(target, "://")
	p := &proxy{url: scheme + "://" + l.Addr().String(), target: host, conns: map[net.Conn]bool{}}
	p.cond = sync.NewCond(&p.mu)
	p.done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.done.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		p.gone = true
		p.mu.Unlock()
		p.cond.Broadcast()
		p.reset()
		p.done.Wait()
	})
	return p
}

func (p *proxy) serve(conn net.Conn) {
	defer conn.Close()
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	other, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer other.Close()
	p.mu.Lock()
	p.conns[conn], p.conns[other] = true, true
	gone := p.gone
	p.mu.Unlock()
	if gone {
		return
	}
	var both sync.WaitGroup
	pass := func(to, from net.Conn) {
		defer to.Close()
		defer from.Close()
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			if n > 0 && p.open() {
				if _, err := to.Write(buffer[:n]); err != nil {
					return
				}
			}
			if err != nil {
				if errors.Is(err, io.EOF) {
					p.open() // an end is not passed on by a proxy that is cut either
				}
				return
			}
		}
	}
	both.Go(func() { pass(conn, other) })
	pass(other, conn)
	both.Wait()
	p.mu.Lock()
	delete(p.conns, conn)
	delete(p.conns, other)
	p.mu.Unlock()
}

// open waits while the proxy is cut; false if it has ended.
func (p *proxy) open() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.cut && !p.gone {
		p.cond.Wait()
	}
	return !p.gone
}

// sever stops all traffic; mend lets it go on.
func (p *proxy) sever() { p.set(true) }
func (p *proxy) mend()  { p.set(false) }

func (p *proxy) set(cut bool) {
	p.mu.Lock()
	p.cut = cut
	p.mu.Unlock()
	p.cond.Broadcast()
}

// retarget has connections lead to another URL from here on, and closes those that there are.
func (p *proxy) retarget(url string) {
	_, host, _ := strings.Cut(url, "://")
	p.mu.Lock()
	p.target = host
	p.mu.Unlock()
	p.reset()
}

// reset closes all connections.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		conn.Close()
	}
}
