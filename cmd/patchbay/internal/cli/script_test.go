package cli_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/cli"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk"
)

// programs are what the test binary also is: patchbay, and plugins.
var programs = map[string]func(){
	"patchbay": func() { os.Exit(cli.Main()) },
	"plugin":   servePlugin,
	"hello":    serveHello,
	"gadgets":  serveGadgets,
	"burns":    burn,
}

func TestMain(m *testing.M) { testscript.Main(m, programs) }

// TestScripts runs the scripts in testdata/script: the real commands against the real daemon with real plugins, each a process.
func TestScripts(t *testing.T) {
	raced := preferPlain(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			// A short path, because the path of a socket is limited.
			dir, err := os.MkdirTemp("", "pb")
			if err != nil {
				return err
			}
			env.Defer(func() { os.RemoveAll(dir) })
			env.Setenv("DIR", dir)
			env.Setenv("RACED", raced)
			env.Setenv("GORACE", "atexit_sleep_ms=0") // a program with the race detector sleeps a second before it exits
			env.Setenv("LONG", strings.Repeat("l", 108))
			env.Setenv("PATCHBAY_CONTROL_SOCKET", filepath.Join(dir, "control.sock"))
			all := &processes{byName: map[string]*process{}}
			env.Values[processesKey{}] = all
			env.Defer(all.kill)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   exits,
			"denied":  denied,
			"etcd":    badEtcd,
			"start":   start,
			"says":    says,
			"signal":  sendSignal,
			"storm":   storm,
			"ended":   ended,
			"json":    jsonValue,
			"address": address,
			"get":     get,
		},
		Condition: func(name string) (bool, error) {
			if name != "privileged" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return runtime.GOOS == "linux" && os.Geteuid() == 0, nil
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// servePlugin is the program plugin SOCKET TYPE NAME [VERSION...]. It prints what the daemon tells it. A name in double quotes is
// read as a Go string.
func servePlugin() {
	socket, ptype, name := os.Args[1], os.Args[2], os.Args[3]
	if unquoted, err := strconv.Unquote(name); err == nil {
		name = unquoted
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	plugin := pluginwatcher.NewTestExamplePlugin(name, ptype, socket, os.Args[4:]...)
	if err := plugin.Serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("serving")
	for {
		select {
		case status := <-plugin.Statuses():
			fmt.Printf("registered=%t error=%q\n", status.PluginRegistered, status.Error)
		case <-signals:
			if err := plugin.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
}

// serveHello is the program hello [SOCKET], a plugin that the daemon launches, or that makes a socket of its own. HELLO_NAME is its name,
// if it is not hello.
func serveHello() {
	fmt.Println("hello world")
	fmt.Fprintln(os.Stderr, `level=warn msg="hello trouble" reason=none`)
	p := sdk.Plugin{
		Type: "ExamplePlugin", Name: cmp.Or(os.Getenv("HELLO_NAME"), "hello"), Versions: []string{"v1beta1"},
		Register: func(s grpc.ServiceRegistrar) { v1beta1.RegisterExampleServer(s, v1beta1.UnimplementedExampleServer{}) },
	}
	if len(os.Args) > 1 {
		p.Socket = os.Args[1]
	}
	if err := sdk.Serve(context.Background(), p); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// burn is the program burns, which has more threads run than there are processors, and serves nothing.
func burn() {
	threads := 8 * runtime.NumCPU()
	runtime.GOMAXPROCS(threads)
	for range threads - 1 {
		go func() {
			for { //nolint:revive,staticcheck // to spin is what it does
			}
		}()
	}
	for { //nolint:revive,staticcheck // to spin is what it does
	}
}

// exits CODE PROGRAM [ARG...] runs a program and checks its exit code. A patchbay command that fails must say so in one line.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	run(ts, want, exec.Command(args[1], args[2:]...))
}

// denied CODE ARG... is exits for patchbay run by a user without any rights. It needs the condition [privileged].
func denied(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: denied CODE [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	cmd := exec.Command("patchbay", args[1:]...)
	dropRights(cmd)
	run(ts, want, cmd)
}

// run runs a program and checks its exit code and what it says.
func run(ts *testscript.TestScript, want int, cmd *exec.Cmd) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = environment(ts)
	if cmd.Dir == "" {
		cmd.Dir = ts.MkAbs(".")
	}
	ended := make(chan error, 1)
	ts.Check(cmd.Start())
	go func() { ended <- cmd.Wait() }()
	var err error
	select {
	case err = <-ended:
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		<-ended
		ts.Fatalf("%v hangs; stderr: %s", cmd.Args, &stderr)
	}
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		ts.Fatalf("%v: %v", cmd.Args, err)
	}
	_, err = ts.Stdout().Write(stdout.Bytes())
	ts.Check(err)
	_, err = ts.Stderr().Write(stderr.Bytes())
	ts.Check(err)
	if code := cmd.ProcessState.ExitCode(); code != want {
		ts.Fatalf("exit code %d, want %d; stderr: %s", code, want, &stderr)
	}
	if want != 0 && cmd.Args[0] == "patchbay" {
		lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
		last := lines[len(lines)-1]
		// The daemon logs JSON before it fails.
		others := slices.DeleteFunc(lines[:len(lines)-1], func(l string) bool { return strings.HasPrefix(l, "{") })
		if !strings.HasPrefix(last, "patchbay: ") || len(others) > 0 {
			ts.Fatalf("stderr is not one line that begins with \"patchbay: \": %s", &stderr)
		}
	}
}

// patience bounds how long a script waits for what should happen at once.
const patience = 2 * time.Minute

type processesKey struct{}

// processes are those that a script started and that may still run.
type processes struct {
	byName map[string]*process
}

func (p *processes) kill() {
	for _, proc := range p.byName {
		_ = proc.cmd.Process.Kill()
		select {
		case <-proc.ended:
		case <-time.After(patience): // a grandchild holds its output open; the test failed already
		}
	}
}

func processOf(ts *testscript.TestScript, name string) *process {
	proc := ts.Value(processesKey{}).(*processes).byName[name]
	if proc == nil {
		ts.Fatalf("no process %q was started", name)
	}
	return proc
}

// process is a program in the background whose output is kept.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr output
	ended          chan struct{} // closed when the program has ended and all of its output was read
}

// output keeps what a program writes and wakes those who wait for a line.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	added chan struct{} // closed and made again whenever a line was added
}

func (o *output) read(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		o.mu.Lock()
		o.text.Write(append(lines.Bytes(), '\n'))
		close(o.added)
		o.added = make(chan struct{})
		o.mu.Unlock()
	}
}

func (o *output) snapshot() (text string, added <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String(), o.added
}

// start NAME REGEXP PROGRAM [ARG...] starts a program in the background and waits until a line of its output matches.
func start(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: start NAME REGEXP PROGRAM [ARG...]")
	}
	until := regexp.MustCompile(args[1])
	cmd := exec.Command(args[2], args[3:]...)
	cmd.Env = environment(ts)
	cmd.Dir = ts.MkAbs(".")
	stdout, err := cmd.StdoutPipe()
	ts.Check(err)
	stderr, err := cmd.StderrPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	proc := &process{cmd: cmd, ended: make(chan struct{})}
	proc.stdout.added, proc.stderr.added = make(chan struct{}), make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() { proc.stdout.read(stdout) })
	reading.Go(func() { proc.stderr.read(stderr) })
	go func() {
		reading.Wait()
		_ = cmd.Wait() // the exit code is looked at later
		close(proc.ended)
	}()
	ts.Value(processesKey{}).(*processes).byName[args[0]] = proc
	proc.await(ts, until)
}

// says NAME REGEXP waits until a line of the output of a process of start matches.
func says(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: says NAME REGEXP")
	}
	processOf(ts, args[0]).await(ts, regexp.MustCompile(args[1]))
}

// await waits until a line of the output matches.
func (proc *process) await(ts *testscript.TestScript, until *regexp.Regexp) {
	watchdog := time.After(patience)
	for {
		out, outAdded := proc.stdout.snapshot()
		errs, errAdded := proc.stderr.snapshot()
		if until.MatchString(out) || until.MatchString(errs) {
			return
		}
		select {
		case <-outAdded:
		case <-errAdded:
		case <-proc.ended:
			ts.Fatalf("%v ended before a line matched %q\nstdout: %s\nstderr: %s", proc.cmd.Args, until, out, errs)
		case <-watchdog:
			ts.Fatalf("%v: no line matches %q\nstdout: %s\nstderr: %s", proc.cmd.Args, until, out, errs)
		}
	}
}

// signal NAME SIGNAL sends a signal to a process of start.
func sendSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: signal NAME HUP|INT|TERM|KILL")
	}
	sig, ok := map[string]os.Signal{"HUP": syscall.SIGHUP, "INT": os.Interrupt, "TERM": syscall.SIGTERM, "KILL": os.Kill}[args[1]]
	if !ok {
		ts.Fatalf("unknown signal %q", args[1])
	}
	ts.Check(processOf(ts, args[0]).cmd.Process.Signal(sig))
}

// storm NAME COUNT sends SIGHUP to a process of start many times.
func storm(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: storm NAME COUNT")
	}
	count, err := strconv.Atoi(args[1])
	ts.Check(err)
	for range count {
		ts.Check(processOf(ts, args[0]).cmd.Process.Signal(syscall.SIGHUP))
	}
}

// ended NAME CODE waits until a process of start ends and checks its exit code, -1 if a signal killed it. What it printed is then the
// standard output and error of this command.
func ended(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: ended NAME CODE")
	}
	proc := processOf(ts, args[0])
	select {
	case <-proc.ended:
	case <-time.After(patience):
		out, _ := proc.stdout.snapshot()
		errs, _ := proc.stderr.snapshot()
		ts.Fatalf("%s does not end\nstdout: %s\nstderr: %s", args[0], out, errs)
	}
	out, _ := proc.stdout.snapshot()
	errs, _ := proc.stderr.snapshot()
	fmt.Fprint(ts.Stdout(), out)
	fmt.Fprint(ts.Stderr(), errs)
	if code := strconv.Itoa(proc.cmd.ProcessState.ExitCode()); code != args[1] {
		ts.Fatalf("exit code %s, want %s\nstdout: %s\nstderr: %s", code, args[1], out, errs)
	}
	delete(ts.Value(processesKey{}).(*processes).byName, args[0])
}

// json FILE INDEX KEY... checks that one object of a JSON array, or of a file with one object a line, has every key. KEY=VALUE also checks
// the value, which is JSON or else a string. With "!", it checks that the file has no such object.
func jsonValue(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: [!] json FILE INDEX [KEY[=VALUE]...]")
	}
	index, err := strconv.Atoi(args[1])
	ts.Check(err)
	objects := decode(ts, ts.ReadFile(args[0]))
	if neg {
		if index < len(objects) {
			ts.Fatalf("there are %d objects", len(objects))
		}
		return
	}
	if index >= len(objects) {
		ts.Fatalf("there are only %d objects", len(objects))
	}
	for _, arg := range args[2:] {
		key, want, compared := strings.Cut(arg, "=")
		got, ok := objects[index][key]
		if !ok {
			ts.Fatalf("object %d has no key %q: %v", index, key, objects[index])
		}
		if !compared {
			continue
		}
		var value any
		if json.Unmarshal([]byte(want), &value) != nil {
			value = want
		}
		gotText, err := json.Marshal(got)
		ts.Check(err)
		wantText, err := json.Marshal(value)
		ts.Check(err)
		if !bytes.Equal(gotText, wantText) {
			ts.Fatalf("object %d: %s is %s, want %s", index, key, gotText, wantText)
		}
	}
}

// servedAt is where a daemon says, in its log, that it serves HTTP.
var servedAt = regexp.MustCompile(`"serving HTTP"[ ,]"?address"?[:=]"?([^"\n]+)`)

// httpAddress returns where the daemon that is process NAME serves HTTP.
func httpAddress(ts *testscript.TestScript, name string) string {
	log, _ := processOf(ts, name).stderr.snapshot()
	found := servedAt.FindStringSubmatch(log)
	if found == nil {
		ts.Fatalf("%s does not serve HTTP: %s", name, log)
	}
	return found[1]
}

// address NAME sets $ADDRESS to where the daemon that is process NAME serves HTTP.
func address(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: address NAME")
	}
	ts.Setenv("ADDRESS", httpAddress(ts, args[0]))
}

// get NAME PATH STATUS asks the daemon that is process NAME over HTTP. The body is then the standard output of this command.
func get(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: get NAME PATH STATUS")
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, Timeout: patience}).Get("http://" + httpAddress(ts, args[0]) + args[1])
	ts.Check(err)
	defer response.Body.Close()
	_, err = io.Copy(ts.Stdout(), response.Body)
	ts.Check(err)
	if strconv.Itoa(response.StatusCode) != args[2] {
		ts.Fatalf("status %d, want %s", response.StatusCode, args[2])
	}
}

func decode(ts *testscript.TestScript, text string) []map[string]any {
	var objects []map[string]any
	if strings.HasPrefix(text, "[") {
		ts.Check(json.Unmarshal([]byte(text), &objects))
		return objects
	}
	for decoder := json.NewDecoder(strings.NewReader(text)); ; {
		var object map[string]any
		switch err := decoder.Decode(&object); {
		case errors.Is(err, io.EOF):
			return objects
		default:
			ts.Check(err)
			objects = append(objects, object)
		}
	}
}

func environment(ts *testscript.TestScript) []string {
	env := os.Environ()
	for _, key := range []string{
		"DIR", "GORACE", "HOME", "PATCHBAY_CONFIG", "PATCHBAY_CONTROL_SOCKET", "PATCHBAY_HTTP", "PATCHBAY_LOG_LEVEL", "PATCHBAY_STATE",
		"XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME",
	} {
		env = append(env, key+"="+ts.Getenv(key))
	}
	return env
}
