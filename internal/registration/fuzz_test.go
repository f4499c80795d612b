package registration

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
)

// maxFuzz is how many bytes a peer sends that reads nothing, so that the acknowledgements still fit into the buffer of its socket.
const maxFuzz = 64 << 10

// FuzzClient has a peer that sends first to GetInfo, then second to Notify, and closes its side. Whatever that is, both calls end without
// waiting for their deadline, allocate within bounds and leave nothing behind.
func FuzzClient(f *testing.F) {
	first, second := realAnswers(f)
	f.Add(first, second)
	f.Add([]byte{}, []byte{})
	l := listen(f)
	for _, h := range hostile {
		if h.want == codes.DeadlineExceeded { // the start of what others send
			continue
		}
		said := recorded(f, l, h.play)
		f.Add(said, []byte{})
		f.Add(first, said)
	}

	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, first, second []byte) {
		if len(first)+len(second) > maxFuzz {
			return
		}
		client, conn := connected(t, l)
		defer client.Close()
		defer conn.Close()
		goroutines, allocated := runtime.NumGoroutine(), allocs()
		for _, b := range [][]byte{first, second} {
			if _, err := conn.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		info, err := client.GetInfo(ctx, 0)
		if n := len(info.Type) + len(info.Name) + len(info.Endpoint); n > maxAnswer {
			t.Errorf("an answer of %d bytes", n)
		}
		checkError(t, err)
		checkError(t, client.Notify(ctx, 0, false, "no"))
		if n := allocs() - allocated; n > memoryBound {
			t.Errorf("the calls allocated %d bytes", n)
		}
		// The runtime's own goroutine for finalizers counts while it works.
		for wait := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines; runtime.Gosched() {
			if time.Now().After(wait) {
				stacks := make([]byte, 1<<16)
				t.Fatalf("more than the %d goroutines from before\n%s", goroutines, stacks[:runtime.Stack(stacks, true)])
			}
		}
	})
}

// checkError accepts success and every status but the client's own deadline.
func checkError(t *testing.T, err error) {
	t.Helper()
	s, ok := status.FromError(err)
	switch {
	case !ok:
		t.Errorf("no status: %v", err)
	case s.Code() == codes.DeadlineExceeded && s.Message() == "no answer from the plugin: context deadline exceeded":
		t.Errorf("the call waited: %v", err)
	case len(s.Message()) > 2<<10:
		t.Errorf("a message of %d bytes", len(s.Message()))
	}
}

func allocs() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

func listen(t testing.TB) *net.UnixListener {
	t.Helper()
	path := filepath.Join(tempDir(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// connected connects a client and returns both ends.
func connected(t testing.TB, l *net.UnixListener) (*Client, *net.UnixConn) {
	t.Helper()
	client, err := dialAt(context.Background(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	return client, conn
}

// recorded returns the first bytes that a hostile peer sends on stream 1.
func recorded(t testing.TB, l *net.UnixListener, play func(*peer)) []byte {
	t.Helper()
	client, conn := connected(t, l)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer conn.Close()
		p := newPeer(conn)
		p.stream = 1
		play(p)
	}()
	b := make([]byte, 8<<10)
	_ = client.socket.SetReadDeadline(time.Now().Add(moment)) // for those that wait for the client's end
	n, err := io.ReadFull(client.socket, b)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) && !isTimeout(err) {
		t.Fatal(err)
	}
	_ = client.Close()
	<-done
	return b[:n]
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// recorder keeps what is read.
type recorder struct {
	net.Conn
	read []byte
}

func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	r.read = append(r.read, b[:n]...)
	return n, err
}

// realAnswers returns what a server of grpc-go sends in answer to GetInfo and to Notify.
func realAnswers(t testing.TB) (first, second []byte) {
	t.Helper()
	path, _ := serve(t, &fakePlugin{})
	c, err := dialAt(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := &recorder{Conn: c.socket}
	c.conn.in.Reset(r)
	if _, err := c.GetInfo(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	first, r.read = r.read, nil
	if err := c.Notify(context.Background(), 0, true, ""); err != nil {
		t.Fatal(err)
	}
	return first, r.read
}

// FuzzParseInfo has a launched plugin introduce itself with anything. What is accepted is what GetInfo would have returned, and no larger
// than what was said.
func FuzzParseInfo(f *testing.F) {
	answer, err := proto.Marshal(&registerapi.PluginInfo{Type: "T", Name: "n", Endpoint: "/e", SupportedVersions: []string{"v1", "v2"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(answer)
	f.Add([]byte{})
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, said []byte) {
		info, err := ParseInfo(said)
		if err != nil {
			return
		}
		size := len(info.Type) + len(info.Name) + len(info.Endpoint) + len(info.Versions)
		for _, text := range append([]string{info.Type, info.Name, info.Endpoint}, info.Versions...) {
			if !utf8.ValidString(text) {
				t.Errorf("%q is accepted as text", text)
			}
		}
		if size > len(said) {
			t.Errorf("%d bytes became %d", len(said), size)
		}
		again, err := proto.Marshal(&registerapi.PluginInfo{
			Type: info.Type, Name: info.Name, Endpoint: info.Endpoint, SupportedVersions: info.Versions,
		})
		if err != nil {
			t.Fatal(err)
		}
		if back, err := ParseInfo(again); err != nil || !reflect.DeepEqual(back, info) {
			t.Errorf("%+v became %+v, %v", info, back, err)
		}
	})
}
