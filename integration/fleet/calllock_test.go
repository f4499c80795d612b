package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/client"
)

// recorder notes who is active with which token, and whether ever two are.
type recorder struct {
	mu     sync.Mutex
	active map[string]int
	tokens []int64
	holder string
	wrong  []string
}

// during is for the plugin of a node.
func (r *recorder) during(node string) func(context.Context, string) {
	return func(ctx context.Context, text string) {
		token, err := strconv.ParseInt(text, 10, 64)
		r.mu.Lock()
		if err != nil {
			r.wrong = append(r.wrong, fmt.Sprintf("%s has the token %q", node, text))
		}
		r.active[node]++
		for other, n := range r.active {
			if other != node && n > 0 {
				r.wrong = append(r.wrong, fmt.Sprintf("%s and %s are active", node, other))
			}
		}
		switch n := len(r.tokens); {
		case n == 0 || r.tokens[n-1] < token:
			r.tokens, r.holder = append(r.tokens, token), node
		case r.tokens[n-1] > token || r.holder != node:
			r.wrong = append(r.wrong, fmt.Sprintf("%s has token %d after %v of %s", node, token, r.tokens, r.holder))
		}
		r.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
		r.mu.Lock()
		r.active[node]--
		r.mu.Unlock()
	}
}

func (r *recorder) check(t *testing.T, least int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range r.wrong {
		t.Error(text)
	}
	if len(r.tokens) < least {
		t.Errorf("there were %d holders, want at least %d", len(r.tokens), least)
	}
	t.Logf("tokens: %v", r.tokens)
}

// holder waits until a node other than the given one holds the lock of the one plugin of a type, and returns the node. A list may be read
// while nobody holds the lock: on a busy machine the presence of the last holder has expired, or a call was answered before.
func (d *daemon) holder(ptype, not string) (node string) {
	d.t.Helper()
	eventually(d.t, fmt.Sprintf("a node other than %q holds the lock of %s", not, ptype), func() bool {
		output, err := d.try("fleet", "list", "-o", "json", "--type", ptype)
		var list []struct {
			Node         string
			FencingToken int64
		}
		if err != nil || json.Unmarshal([]byte(output), &list) != nil {
			return false
		}
		node = ""
		for _, p := range list {
			if p.FencingToken > 0 {
				node = p.Node
			}
		}
		return node != "" && node != not
	})
	return node
}

// TestCallLock: of an exclusive plugin one instance is active, over stops, crashes and partitions, and the token grows.
func TestCallLock(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	record := &recorder{active: map[string]int{}}
	nodes, links, stops := map[string]*daemon{}, map[string]*proxy{}, map[string]func(){}
	for _, name := range []string{"a", "b", "caller"} {
		link := newProxy(t, etcd.client)
		nodes[name] = newCaller(t, patchbay, name, link.url, ca, allowNodes, "  exclusive: [Echo]\n")
		links[name] = link
		nodes[name].start()
		if name != "caller" {
			stops[name] = nodes[name].echo(record.during(name))
		}
	}
	caller := nodes["caller"]
	caller.inFleet(2)
	ctx, cancel := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	t.Cleanup(func() { cancel(); calling.Wait() })
	var good atomic.Int64
	// All of these call all the time: through the fleet, and each node at its own socket.
	call := func(c grpc_testing.TestServiceClient) {
		calling.Go(func() {
			for ctx.Err() == nil {
				limited, done := context.WithTimeout(ctx, 3*time.Second)
				_, err := c.UnaryCall(limited, &grpc_testing.SimpleRequest{})
				done()
				if err == nil {
					good.Add(1)
				} else {
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
	for _, node := range []string{"", "a", "b"} {
		call(caller.caller(node))
	}
	for _, name := range []string{"a", "b"} {
		conn, err := client.New(filepath.Join(nodes[name].dir, "control.sock")).Conn("Echo", "one")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		call(grpc_testing.NewTestServiceClient(conn))
	}
	// next waits until another than this node holds the lock and is called.
	next := func(not string) string {
		t.Helper()
		before := good.Load()
		holder := caller.holder("Echo", not)
		eventually(t, "calls are answered", func() bool { return good.Load() > before+3 })
		return holder
	}
	other := map[string]string{"a": "b", "b": "a"}
	first := next("")
	if _, err := answers(t, caller.caller(other[first])); grpcstatus.Code(err) != codes.FailedPrecondition {
		t.Errorf("the node that does not hold the lock: %v", err)
	}
	links[first].sever()
	second := next(first)
	time.Sleep(3 * time.Second) // whoever was cut off has every chance to do wrong
	links[first].mend()
	record.check(t, 2)

	nodes[second].kill()
	stops[second]()
	if got := next(second); got != first {
		t.Errorf("%s holds the lock", got)
	}
	os.Remove(filepath.Join(nodes[second].dir, "plugins", "echo.sock"))
	nodes[second].start()
	stops[second] = nodes[second].echo(record.during(second))
	caller.inFleet(2)
	start := time.Now()
	nodes[first].end(syscall.SIGTERM)
	next(first)
	t.Logf("after an orderly stop the lock passed on in %v", time.Since(start))
	record.check(t, 4)
}
