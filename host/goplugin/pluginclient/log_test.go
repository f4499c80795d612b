package pluginclient_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// printLog prints on standard error what plugins print there.
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
	log.await(t, fmt.Sprintf(`"@level":"debug","@message":"%s"`, strings.Repeat("long", 10)))
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
		length := f.line * 7919 % 200
		if f.line%10_000 == 0 {
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

// TestPrintedBefore: a plugin that prints something before its handshake is told so, and the text is in the error.
func TestPrintedBefore(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"a line":     {"what a lovely day\n", `it printed "what a lovely day" on standard output before its handshake`},
		"blank line": {"\n", `it printed an empty line on standard output before its handshake`},
		"no end":     {"half a line", `it printed "half a line1|3|unix|`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := newClient(t, config("prints", textEnv+"="+tc.text)).Client()
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "must print nothing there") {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}
