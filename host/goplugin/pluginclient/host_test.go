//go:build unix

package pluginclient_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/host/goplugin/pluginclient"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// limitDescriptors leaves this process so many more descriptors than it has.
func limitDescriptors(left int) {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	most := uint64(len(open) - 1 + left)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}); err != nil {
		panic(err)
	}
}

// beHost is the process of a host that runHost starts.
func beHost() {
	kind := os.Getenv(textEnv)
	if err := errors.Join(os.Unsetenv(modeEnv), os.Unsetenv(textEnv)); err != nil { // the plugin would be a host, too
		panic(err)
	}
	c := config("serve")
	var left int
	if kind == "no logger" {
		c = config("logs")
		c.Logger = nil
	} else if _, err := fmt.Sscanf(kind, "%d descriptors", &left); err == nil {
		limitDescriptors(left)
	}
	client := pluginclient.NewClient(c, func(p *launcher.Plugin) {
		p.Restart.Policy, p.StartTimeout = plugin.RestartNever, 15*time.Second // for those that cannot be registered
	})
	if _, err := client.Client(); err != nil {
		fmt.Println(err)
		client.Kill()
		os.Exit(1)
	}
	announce()
	if kind == "waits" {
		select {}
	}
	client.Kill()
}

// announce says in a file that this process has started.
func announce() {
	if file := os.Getenv(fileEnv); file != "" {
		if err := os.WriteFile(file, fmt.Append(nil, os.Getpid()), 0o600); err != nil {
			panic(err)
		}
	}
}

// runHost returns the command that runs a host with a plugin, whose files for a while are in the directory of TMPDIR.
func runHost(t *testing.T, kind string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), append([]string{modeEnv + "=host", textEnv + "=" + kind}, env...)...)
	return cmd
}

// shortDir makes a temporary directory with a short path.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestNoTempDir: the error names the directory that TMPDIR says.
func TestNoTempDir(t *testing.T) {
	out, err := runHost(t, "", "TMPDIR=/proc").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "/proc") || !strings.Contains(string(out), "TMPDIR") {
		t.Errorf("%v, %s", err, out)
	}
}

// TestNamedDirs: directories that a user has named stay, and those of another directory, whose name matches that of TMPDIR as a pattern.
func TestNamedDirs(t *testing.T) {
	dir := shortDir(t)
	temp := filepath.Join(dir, "[x]")
	t.Setenv("TMPDIR", temp)
	named, other, left := filepath.Join(temp, "pbclient-src"), filepath.Join(dir, "x", "pbclient1"), filepath.Join(temp, "pbclient1")
	for _, d := range []string{named, other, left} {
		if err := errors.Join(os.MkdirAll(d, 0o700), os.WriteFile(filepath.Join(d, "file"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	dispense(t, newClient(t, config("serve")))
	for path, want := range map[string]bool{named: true, other: true, left: false} {
		if _, err := os.Stat(filepath.Join(path, "file")); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestKilledHost: what a host leaves that is killed is removed by the next one, and what belongs to a running one is not.
func TestKilledHost(t *testing.T) {
	dir := shortDir(t)
	t.Setenv("TMPDIR", dir)
	started := filepath.Join(t.TempDir(), "started")
	killed, running := runHost(t, "waits", fileEnv+"="+started+"1"), runHost(t, "waits", fileEnv+"="+started+"2")
	for i, host := range []*exec.Cmd{killed, running} {
		if err := host.Start(); err != nil {
			t.Fatal(err)
		}
		defer host.Wait()
		defer host.Process.Kill()
		awaitFile(t, fmt.Sprint(started, i+1))
	}
	if left := entries(t, dir, "pbclient"); len(left) != 2 {
		t.Fatalf("two hosts have %v", left)
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	client := newClient(t, config("serve"))
	dispense(t, client)
	if left := entries(t, dir, "pbclient"); len(left) != 2 {
		t.Errorf("one host runs beside this one, and there are %v", left)
	}
	client.Kill()
	if left := entries(t, dir, "pbclient"); len(left) != 1 {
		t.Errorf("one host runs, and there are %v", left)
	}
}

func entries(t *testing.T, dir, prefix string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// printLog writes log records, plain lines and a panic to standard error, as plugins do.
func printLog() {
	logger := hclog.New(&hclog.LoggerOptions{Output: os.Stderr, JSONFormat: true, Level: hclog.Trace, Name: "talk"})
	logger.Warn("the well runs low", "metres", 2)
	logger.Trace("one bucket", "bucket", "blue")
	fmt.Fprint(os.Stderr, "[ERROR] no rope\nplain\n\n\x1b[31mred\x1b[0m\r\n", strings.Repeat("long", 50_000), "\npanic: dry\n\ngoroutine 1 [running]:\n")
}

// printed is what printLog prints after its records.
func printed() string {
	return "[ERROR] no rope\nplain\n\n\x1b[31mred\x1b[0m\r\n" + strings.Repeat("long", 50_000) + "\npanic: dry\n\ngoroutine 1 [running]:\n"
}

// TestLogger: what the plugin logs and prints on standard error is logged by the host's Logger, as the library does.
func TestLogger(t *testing.T) {
	t.Parallel()
	log := newSeen()
	c := config("logs")
	c.Logger = hclog.New(&hclog.LoggerOptions{Output: log, JSONFormat: true, Level: hclog.Trace, Name: "host"})
	dispense(t, newClient(t, c))
	for _, want := range []string{
		`"@level":"warn","@message":"the well runs low"`, `"metres":2`, `"@level":"trace","@message":"one bucket"`,
		`"@level":"error","@message":"[ERROR] no rope"`, `"@level":"debug","@message":"plain"`,
		`"@level":"error","@message":"panic: dry"`, `"@level":"error","@message":"goroutine 1 [running]:"`,
		`"@module":"host.` + filepath.Base(os.Args[0]) + `"`,
	} {
		log.await(t, want)
	}
}

// TestPluginLogBufferSize: a longer line is logged in parts.
func TestPluginLogBufferSize(t *testing.T) {
	t.Parallel()
	log := newSeen()
	c := config("logs")
	c.PluginLogBufferSize = 40
	c.Logger = hclog.New(&hclog.LoggerOptions{Output: log, JSONFormat: true, Level: hclog.Trace})
	dispense(t, newClient(t, c))
	log.await(t, `"@level":"debug","@message":"`+strings.Repeat("long", 10)+`"`)
}

// TestNoLogger: a host without a Logger sees on its own standard error what the plugin prints there.
func TestNoLogger(t *testing.T) {
	out, err := runHost(t, "no logger").CombinedOutput()
	if err != nil || !regexp.MustCompile(`\[WARN\] .*: the well runs low: .*metres=2`).Match(out) {
		t.Errorf("%v, it printed:\n%.2000s", err, out)
	}
}

// TestStderr: Stderr gets every byte that the plugin writes to standard error, and nothing else.
func TestStderr(t *testing.T) {
	t.Parallel()
	raw, synced := newSeen(), newSeen()
	c := config("logs")
	c.Stderr, c.SyncStderr = raw, synced
	client := newClient(t, c)
	p := dispense(t, client)
	if _, err := p.ask("print this"); err != nil {
		t.Fatal(err)
	}
	synced.await(t, "this")
	raw.await(t, "here I come\n")
	client.Kill()
	got := raw.text.String()
	if _, after, found := strings.Cut(got, `"blue"}`+"\n"); !found || !strings.HasPrefix(after, printed()+"here I come\n") || strings.Contains(got, "this\n") {
		t.Errorf("%d bytes: %.1000q … %.200q", len(got), got, got[max(0, len(got)-200):])
	}
}

// flood is 100 MB of lines, of which some are blank, long or have control bytes.
type flood struct {
	line, left int
	rest       []byte
}

func newFlood() io.Reader { return &flood{left: 100 << 20} }

func (f *flood) Read(p []byte) (int, error) {
	if f.left <= 0 {
		return 0, io.EOF
	}
	if len(f.rest) == 0 {
		f.line++
		length := f.line * 7919 % 4000
		if f.line%1000 == 0 {
			length = 300_000
		}
		f.rest = append(fmt.Appendf(nil, "%d\x00\x1b%s", f.line, bytes.Repeat([]byte{'x'}, length)), "\n\n"...)
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	f.left -= n
	return n, nil
}

// digest hashes the first bytes that are written to it.
type digest struct {
	mu    sync.Mutex
	hash  hash.Hash
	first int
	bytes int
	most  uint64 // memory that was in use
}

func (d *digest) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bytes>>24 != (d.bytes+len(p))>>24 {
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		d.most = max(d.most, memory.HeapInuse)
	}
	d.hash.Write(p[:max(0, min(len(p), d.first-d.bytes))])
	d.bytes += len(p)
	return len(p), nil
}

// TestFlood: a plugin that writes 100 MB to standard error costs the host no memory, and none of it is lost.
func TestFlood(t *testing.T) {
	want := sha256.New()
	n, err := io.Copy(want, newFlood())
	if err != nil {
		t.Fatal(err)
	}
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := config("floods")
	c.StartTimeout = 10 * time.Minute
	got := &digest{hash: sha256.New(), first: int(n)}
	c.Stderr = got
	client := newClient(t, c)
	dispense(t, client)
	client.Kill()
	if got.bytes < int(n) || !bytes.Equal(got.hash.Sum(nil), want.Sum(nil)) {
		t.Errorf("%d bytes of %d were written to Stderr, or others", got.bytes, n)
	}
	if most := int64(got.most) - int64(before.HeapInuse); most > 48<<20 {
		t.Errorf("the host used %d MB more memory", most>>20)
	}
}

// brokered is a connection that the broker has made to one process of the plugin.
type brokered struct {
	pid  string
	conn *grpc.ClientConn
	seen sync.Map // which callers were answered
	left atomic.Int64
	all  chan struct{} // closed when all were

	killed, replaced chan struct{} // closed immediately before the process is killed, and when there is another
}

// broker dispenses until the process that answers is another than the last one, and connects to it through the broker.
func broker(t *testing.T, client *pluginclient.Client, last string, callers int) *brokered {
	t.Helper()
	b := &brokered{all: make(chan struct{}), killed: make(chan struct{}), replaced: make(chan struct{})}
	b.left.Store(int64(callers))
	await(t, "another process with a broker", func() bool {
		var p *talker
		pid, err := again(client, &p)
		if err != nil || pid == last {
			return false
		}
		text, err := p.ask("serve")
		if err != nil {
			return false
		}
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return false
		}
		b.pid = pid
		b.conn, err = p.broker.Dial(uint32(id))
		return err == nil
	})
	return b
}

// TestBrokerDuringRestarts: 200 callers on a brokered connection are all answered by each of ten processes of the plugin.
func TestBrokerDuringRestarts(t *testing.T) {
	const callers = 200
	restarts := 10
	if testing.Short() {
		restarts = 3
	}
	for name, multiplexed := range map[string]bool{"a socket each": false, "multiplexed": true} {
		t.Run(name, func(t *testing.T) {
			c := config("serve")
			c.AutoMTLS, c.GRPCBrokerMultiplex = true, multiplexed
			client := pluginclient.NewClient(c, func(p *launcher.Plugin) {
				p.Restart.Backoff.Min, p.Restart.Backoff.Max, p.Restart.Limit = 10*time.Millisecond, 10*time.Millisecond, -1
			})
			t.Cleanup(client.Kill)
			ctx, cancel := context.WithCancel(t.Context())
			var current atomic.Pointer[brokered]
			current.Store(broker(t, client, "", callers))
			var calling sync.WaitGroup
			for i := range callers {
				calling.Go(func() { call(ctx, &current, i) })
			}
			for restart := range restarts {
				b := current.Load()
				select {
				case <-b.all:
				case <-time.After(5 * time.Minute):
					t.Errorf("after restart %d, %d callers were not answered", restart, b.left.Load())
				}
				close(b.killed)
				kill(t, b.pid)
				current.Store(broker(t, client, b.pid, callers))
				close(b.replaced)
				b.conn.Close()
			}
			cancel()
			calling.Wait()
			current.Load().conn.Close()
		})
	}
}

// call calls on the current connection until ctx ends. A caller that was answered waits until the process is about to be killed, and calls
// it until a call fails.
func call(ctx context.Context, current *atomic.Pointer[brokered], caller int) {
	for ctx.Err() == nil {
		b := current.Load()
		answer, err := v1beta1.NewExampleClient(b.conn).GetExampleInfo(ctx, &v1beta1.ExampleRequest{Request: "host"})
		next := b.killed
		if err != nil || answer.GetError() != "hello host" {
			select {
			case <-b.killed:
				next = b.replaced
			case <-time.After(time.Millisecond):
				continue
			}
		} else if _, before := b.seen.LoadOrStore(caller, true); !before && b.left.Add(-1) == 0 {
			close(b.all)
		}
		select {
		case <-next:
		case <-ctx.Done():
		}
	}
}
