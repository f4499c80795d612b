//go:build linux

package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// patience is how long something that has to happen may take on a machine that is busy. It is less where it may well not happen.
var patience = 2 * time.Minute

const (
	// The users of the launched neighbour and of hostile plugins with a user of their own. Nobody else has these numbers.
	neighbourUser, hostileUser = 64_701, 64_702
	// launchedName is the name of a hostile plugin in the catalogue.
	launchedName = "hostile"
	// laterName is the name in the catalogue, and as a plugin, of another well-behaved one, which is only launched when an attack wants it.
	laterName = "later"
)

// scene is a daemon with well-behaved plugins, in a directory of its own.
type scene struct {
	*testing.T

	dir     string // all of it
	plugins string // the plugin directory
	daemon  *exec.Cmd
	log     *transcript
	client  *client.Client
	http    string

	neighbours map[string]string // instance by name
	fares      fares
}

// newScene starts a daemon and the neighbours, and returns when they are registered.
func newScene(t *testing.T, a *attack) *scene {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s := &scene{T: t, dir: dir, plugins: filepath.Join(dir, "plugins"), neighbours: map[string]string{}}
	mode := fs.FileMode(0o755)
	if a.trust != "" {
		mode = fs.ModeSticky | 0o777
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(s.plugins, 0o755), os.Chmod(s.plugins, mode),
		os.WriteFile(s.path("config.yaml"), s.config(a), 0o600)); err != nil {
		t.Fatal(err)
	}
	s.log = &transcript{}
	s.daemon = exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(bin, "patchbay"),
		"run", "--config", s.path("config.yaml"), "--log-format", "json")
	s.daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.start(s.daemon, s.log)
	t.Cleanup(s.end)
	s.client = client.New(s.path("control.sock"))
	t.Cleanup(s.client.Close)
	s.await("the daemon serves", func() bool {
		found := servedAt.FindStringSubmatch(s.log.String())
		if found != nil {
			s.http = found[1]
		}
		return found != nil && strings.Contains(s.log.String(), "plugin directories have been searched")
	})
	if a.roles != "" {
		s.openToAll()
	}
	s.run("neighbour", roleNeighbour, 0)
	names := []string{"found"}
	if root {
		names = append(names, "launched")
	}
	for _, name := range names {
		p, err := s.client.Wait(t.Context(), "Neighbour", name, client.GoalRegistered)
		if err != nil {
			t.Fatal(err)
		}
		s.neighbours[name] = p.Instance
		s.await("there is the stable socket of neighbour "+name, func() bool { _, err := os.Lstat(s.stable("Neighbour", name)); return err == nil })
	}
	s.watch()
	return s
}

var servedAt = regexp.MustCompile(`"serving HTTP","address":"([^"]+)"`)

// root says that this is root, who can be other users.
var root = os.Geteuid() == 0

// config is the configuration of the daemon. Deadlines and bounds are low, so that attacks meet them soon.
func (s *scene) config(a *attack) []byte {
	var b bytes.Buffer
	dirs := s.plugins
	if a.second {
		dirs += ", " + s.path("second")
	}
	fmt.Fprintf(&b, `apiVersion: patchbay.dev/v1alpha1
kind: Config
pluginDirs: [%s]
state: %s
controlSocket: %s
dispenseDir: %s
http: 127.0.0.1:0
device: {socketDir: %s}
handlers: {Neighbour: accept, Hostile: accept, CSIPlugin: csi, DevicePlugin: device, DRAPlugin: dra}
timeouts: {getInfo: 1s, notify: 1s}
bounds: {maxSockets: %d, maxDepth: %d}
`, dirs, s.path("state.db"), s.path("control.sock"), s.path("dispense"), s.path("device"), maxSockets, maxDepth)
	if a.trust != "" {
		fmt.Fprintf(&b, "trust: {sticky: true, %s}\n", a.trust)
	}
	if a.roles != "" {
		fmt.Fprintf(&b, "control: {roles: %s}\n", a.roles)
	}
	b.WriteString("plugins:\n")
	if root {
		s.launchable(&b, "neighbour", roleNeighbour, neighbourUser, s.path("launched"), "")
	}
	if a.trust != "" {
		s.launchable(&b, laterName, roleNeighbour, neighbourUser, s.path(laterName), "    autostart: false\n")
	}
	if a.launched != "" {
		s.launchable(&b, launchedName, a.name, hostileUser, s.plugins, "    autostart: false\n"+a.launched)
	}
	return b.Bytes()
}

// launchable writes an entry of the catalogue.
func (s *scene) launchable(b *bytes.Buffer, name, role string, user int, dir, more string) {
	fmt.Fprintf(b, "  - name: %s\n    command: [%s]\n    user: \"%d\"\n    group: \"%d\"\n    env: {%s: %s, %s: %s, GORACE: atexit_sleep_ms=0}\n%s",
		name, filepath.Join(bin, "plugin"), user, user, roleEnv, role, dirEnv, dir, more)
}

func (s *scene) path(name string) string { return filepath.Join(s.dir, name) }

// start starts a process. Those that are left when the test binary is killed are killed too.
func (s *scene) start(cmd *exec.Cmd, output io.Writer) {
	s.Helper()
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
}

// run starts this program in a role, as a process and process group of its own, and returns what kills it.
func (s *scene) run(socket, role string, user uint32) (kill func()) {
	s.Helper()
	output := &transcript{}
	dir := s.plugins
	if role == roleNeighbour {
		dir = s.path("found") // its name
	}
	cmd := exec.CommandContext(context.WithoutCancel(s.Context()), filepath.Join(bin, "plugin"))
	cmd.Env = append(os.Environ(), roleEnv+"="+role, dirEnv+"="+dir, socketEnv+"="+filepath.Join(s.plugins, socket))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if user != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: user}
	}
	s.start(cmd, output)
	kill = sync.OnceFunc(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if err := cmd.Wait(); cmd.ProcessState.Exited() {
			s.Errorf("%s ended by itself: %v", role, err)
		}
		if s.Failed() {
			s.Logf("output of %s:\n%s", role, output)
		}
	})
	s.Cleanup(kill)
	return kill
}

// end ends the daemon in order.
func (s *scene) end() {
	_ = s.daemon.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(patience, func() {
		s.Error("the daemon does not end")
		_ = s.daemon.Process.Signal(syscall.SIGQUIT)
	})
	defer late.Stop()
	if err := s.daemon.Wait(); err != nil {
		s.Errorf("the daemon ended with %v", err)
	}
	if strings.Contains(s.log.String(), "DATA RACE") {
		s.Error("the daemon has a data race")
	}
	if s.Failed() {
		s.Logf("log of the daemon:\n%s", s.log)
	}
}

// await waits until something is so. To look may cost the daemon much, as do all events of a flood: that is half of the time at most.
func (s *scene) await(what string, holds func() bool) {
	s.Helper()
	end, began := time.Now().Add(patience), time.Now()
	for ; !holds(); began = time.Now() {
		if time.Now().After(end) {
			s.Fatalf("it is not so: %s", what)
		}
		time.Sleep(max(50*time.Millisecond, time.Since(began)))
	}
}

// usage is what the daemon uses.
type usage struct{ goroutines, descriptors, memory int }

// usage returns what the daemon uses now; memory is the peak of its resident set since it was reset, in KiB.
func (s *scene) usage() usage {
	s.Helper()
	var u usage
	for name, value := range map[string]*int{"go_goroutines": &u.goroutines, "process_open_fds": &u.descriptors} {
		*value = s.metric(name)
	}
	status, err := os.ReadFile(s.proc("status"))
	if err != nil {
		s.Fatal(err)
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscan(peak, &u.memory); err != nil {
		s.Fatal(err)
	}
	return u
}

func (s *scene) proc(file string) string {
	return filepath.Join("/proc", strconv.Itoa(s.daemon.Process.Pid), file)
}

// resetPeak has the peak of the daemon's memory begin anew.
func (s *scene) resetPeak() {
	s.Helper()
	if err := os.WriteFile(s.proc("clear_refs"), []byte("5"), 0o200); err != nil {
		s.Fatal(err)
	}
}

// metric returns a metric of the daemon; zero if it is one with labels that has none yet.
func (s *scene) metric(name string) int {
	s.Helper()
	_, body := s.get("/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				s.Fatal(err)
			}
			return int(n)
		}
	}
	if !strings.Contains(name, "{") {
		s.Fatalf("there is no metric %s", name)
	}
	return 0
}

// get asks the daemon over HTTP.
func (s *scene) get(path string) (status int, body string) {
	s.Helper()
	request, err := http.NewRequestWithContext(s.Context(), http.MethodGet, "http://"+s.http+path, http.NoBody)
	if err != nil {
		s.Fatal(err)
	}
	request.Close = true
	s.await("there is an answer to "+path, func() bool { // a caller whom a busy machine makes slow is cut off
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		status, body = response.StatusCode, string(text)
		return err == nil
	})
	return status, body
}

// stable is the path of a plugin's stable socket.
func (s *scene) stable(ptype, name string) string {
	return filepath.Join(s.dir, "dispense", ptype, name+".sock")
}

// health calls a plugin at a socket.
func (s *scene) dial(socket string) *grpc.ClientConn {
	s.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() })
	return conn
}

func check(ctx context.Context, conn grpc.ClientConnInterface) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

// callNeighbours calls the neighbours, through their stable sockets and through the control socket, until stop is called, which returns how
// often that succeeded. A call that fails fails the test. It returns when each has been called once.
func (s *scene) callNeighbours() (stop func() int) {
	s.Helper()
	conns := map[string]*grpc.ClientConn{}
	for name := range s.neighbours {
		conns["stable "+name] = s.dial(s.stable("Neighbour", name))
		conn, err := s.client.Conn("Neighbour", name)
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { conn.Close() })
		conns["control "+name] = conn
	}
	ctx, cancel := context.WithCancel(s.Context())
	calls, first, done := 0, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			for which, conn := range conns {
				err := check(s.Context(), conn)
				if s.Context().Err() != nil {
					return
				}
				if s.fares.called(err); err != nil {
					s.Errorf("a call to neighbour %s: %v", which, err)
					return
				}
				calls++
			}
			if calls == len(conns) {
				close(first)
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	select {
	case <-first:
	case <-done:
	}
	return func() int {
		cancel()
		<-done
		return calls
	}
}

// newcomer has another plugin register, and go, and returns how soon it was registered.
func (s *scene) newcomer() time.Duration {
	s.Helper()
	began := time.Now()
	p := pluginwatcher.NewTestExamplePlugin("newcomer", "Neighbour", filepath.Join(s.plugins, "newcomer.sock"), "1")
	if err := p.Serve(); err != nil {
		s.Fatal(err)
	}
	defer func() {
		if err := p.Stop(); err != nil {
			s.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	_, err := s.client.Wait(ctx, "Neighbour", "newcomer", client.GoalRegistered)
	if err != nil {
		s.Errorf("another plugin does not register: %v", err)
	}
	s.fares.registered(time.Since(began), err)
	return time.Since(began)
}

// list returns what the daemon knows.
func (s *scene) list() *patchbayv1.ListPluginsResponse { s.Helper(); return rig.List(s, s.client) }

// patchbay runs a command against the daemon and returns what it prints. It may fail.
func (s *scene) patchbay(args ...string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	output, err := exec.CommandContext(ctx, filepath.Join(bin, "patchbay"), append(args, "--control-socket", s.path("control.sock"))...).CombinedOutput()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		s.Fatal(err)
	}
	return string(output)
}

// events returns all events.
func (s *scene) events() []*patchbayv1.Event {
	s.Helper()
	var all []*patchbayv1.Event
	for e, err := range s.client.Events(s.Context(), &patchbayv1.WatchEventsRequest{}) {
		if err != nil {
			s.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// unharmed checks that the neighbours are what they were: one event each, and the same instance. Others who want their names are refused.
func (s *scene) unharmed() {
	s.Helper()
	for _, e := range s.events() {
		if e.Type != "Neighbour" || s.neighbours[e.Name] == "" {
			continue
		}
		if want := map[bool]string{true: "registered", false: "refused"}[e.Instance == s.neighbours[e.Name]]; e.Kind != want {
			s.Errorf("a neighbour has the event %+v", e)
		}
	}
	for name, instance := range s.neighbours {
		ps, err := s.client.Get(s.Context(), "Neighbour", name)
		// Whoever wants the name and was never registered is refused, or is being refused again.
		ps = slices.DeleteFunc(ps, func(p *patchbayv1.Plugin) bool { return p.Instance == "" })
		if err != nil || len(ps) != 1 || ps[0].State != "registered" || !ps[0].Current || ps[0].Instance != instance || ps[0].LastError != "" {
			s.Errorf("neighbour %s, which was instance %s, is now %+v, %v", name, instance, ps, err)
		}
	}
}

// repaired waits until the neighbours are registered and answer.
func (s *scene) repaired() {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	for name := range s.neighbours {
		if _, err := s.client.Wait(ctx, "Neighbour", name, client.GoalRegistered); err != nil {
			s.Errorf("neighbour %s: %v", name, err)
		}
		conn := s.dial(s.stable("Neighbour", name))
		s.await("neighbour "+name+" answers", func() bool { return check(ctx, conn) == nil })
	}
}

// transcript keeps what is written to it, up to a bound. It is safe for concurrent use.
type transcript struct {
	mu   sync.Mutex
	text []byte
}

func (o *transcript) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	const most = 4 << 20
	o.text = append(o.text, b[:min(len(b), most-len(o.text))]...)
	return len(b), nil
}

func (o *transcript) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}
