package crash_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// daemon is a patchbay that runs.
type daemon struct {
	t      *testing.T
	dir    string
	state  string
	http   string
	cmd    *exec.Cmd
	client *client.Client
	events chan *patchbayv1.Event
	seen   []*patchbayv1.Event
}

func startDaemon(t *testing.T, state string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb") // a short path: that of a socket is limited
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, dir: dir, state: state, events: make(chan *patchbayv1.Event, 10_000)}
	control := filepath.Join(dir, "control.sock")
	log, logged, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d.cmd = exec.Command(patchbay, "run", "--plugin-dir", filepath.Join(dir, "plugins"), "--state", state, "--control-socket", control,
		"--http", "127.0.0.1:0", "--accept-type", ptype, "--log-format", "text")
	d.cmd.Stderr = logged
	began := time.Now()
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = logged.Close()
	ready := make(chan string)
	var text bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer log.Close()
		address := regexp.MustCompile(`msg="serving HTTP" address=(\S+)`)
		buf := make([]byte, 4096)
		for told := false; ; {
			n, err := log.Read(buf)
			text.Write(buf[:n])
			if found := address.FindSubmatch(text.Bytes()); !told && found != nil && bytes.Contains(text.Bytes(), []byte("have been searched")) {
				told = true
				ready <- string(found[1])
			}
			if err != nil {
				close(ready)
				return
			}
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	following := make(chan struct{})
	t.Cleanup(func() {
		d.kill()
		cancel()
		<-following
		<-read
		d.client.Close()
		if t.Failed() {
			t.Logf("%s", &text)
		}
		_ = os.RemoveAll(dir)
	})
	d.client = client.New(control)
	d.http = <-ready
	go func() {
		defer close(following)
		for e, err := range d.client.Events(ctx, &patchbayv1.WatchEventsRequest{Follow: true, Since: timestamppb.New(began)}) {
			if err != nil {
				return
			}
			d.events <- e
		}
	}()
	if d.http == "" {
		t.Fatal("the daemon did not start")
	}
	return d
}

func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

// serve starts a plugin, which ends with the test.
func (d *daemon) serve(name string) plugin {
	d.t.Helper()
	p := pluginwatcher.NewTestExamplePlugin(name, ptype, filepath.Join(d.dir, "plugins", name+".sock"), "v1beta1")
	if err := p.Serve("v1beta1"); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = p.Stop() }) // a second time, for one
	return p
}

// await returns the first event of a kind and plugin.
func (d *daemon) await(kind, name string) *patchbayv1.Event {
	d.t.Helper()
	return d.first(kind+" "+name, func(e *patchbayv1.Event) bool { return e.Kind == kind && e.Name == name })
}

// either returns what came first, the registration of a plugin or its failure.
func (d *daemon) either(name string) (e *patchbayv1.Event, registered bool) {
	d.t.Helper()
	e = d.first(name, func(e *patchbayv1.Event) bool {
		return e.Name == name && (e.Kind == "registered" || e.Kind == "failed")
	})
	return e, e.Kind == "registered"
}

func (d *daemon) first(what string, is func(*patchbayv1.Event) bool) *patchbayv1.Event {
	d.t.Helper()
	if i := slices.IndexFunc(d.seen, is); i >= 0 {
		return d.seen[i]
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		select {
		case e := <-d.events:
			d.seen = append(d.seen, e)
			if is(e) {
				return e
			}
		case <-timeout.C:
			d.t.Fatalf("no event %q; there are %+v", what, d.seen)
		}
	}
}

func (d *daemon) count(kind string) int {
	n := 0
	for _, e := range d.seen {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

func (d *daemon) get(path string) (code int, body string) {
	d.t.Helper()
	request, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, "http://"+d.http+path, http.NoBody)
	if err != nil {
		d.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		d.t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return response.StatusCode, string(b)
}

// checkFailing checks how the daemon is while its state cannot be written: name, served by p, waits, and a and b are used.
func (d *daemon) checkFailing(name string, p plugin) {
	d.t.Helper()
	code, body := d.get("/readyz")
	if code != http.StatusServiceUnavailable || !strings.Contains(body, "[-]state: cannot write state file "+d.state) {
		d.t.Errorf("/readyz says %d %s", code, body)
	}
	if code, _ := d.get("/livez"); code != http.StatusOK {
		d.t.Errorf("/livez says %d", code)
	}
	if _, body := d.get("/metrics"); !strings.Contains(body, `patchbay_condition_degraded{condition="state"} 1`) {
		d.t.Error("the metric of the condition is not 1")
	}
	listing, err := d.client.List(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	if !slices.ContainsFunc(listing.Conditions, func(c *patchbayv1.Condition) bool { return c.Name == "state" && c.Message != "" }) {
		d.t.Errorf("conditions %+v", listing.Conditions)
	}
	for _, p := range listing.Plugins {
		switch {
		case p.Name == name && p.State == "registered":
			d.t.Errorf("%s is registered", name)
		case (p.Name == "a" || p.Name == "b") && (p.State != "registered" || !p.Current):
			d.t.Errorf("%s is %s, current %t", p.Name, p.State, p.Current)
		}
	}
	conn, err := d.client.Conn(ptype, "a")
	if err != nil {
		d.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := v1beta1.NewExampleClient(conn).GetExampleInfo(d.t.Context(), &v1beta1.ExampleRequest{}); err != nil {
		d.t.Errorf("a cannot be called: %v", err)
	}
	if n := len(p.Statuses()); n > 0 {
		d.t.Errorf("%s was told %v", name, <-p.Statuses())
	}
}
