package sdk_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk"
)

// roleEnv has the re-executed test binary be a plugin; its value is a role as JSON.
const roleEnv = "SDK_TEST_ROLE"

// patience bounds what a test waits for.
const patience = 2 * time.Minute

// role is what the plugin in a child process is to be.
type role struct {
	Type, Name, Version, Socket string
	TakeOver, ExitOnRefusal     bool
	HandOver, Drain             time.Duration
	Activated                   []string // the names of inherited sockets
	RunOnly                     bool     // log and wait for the end
	ServeOnly                   bool     // not within Run
	Again                       bool     // serve a second time, after a first that ended at once
}

func TestMain(m *testing.M) {
	if text := os.Getenv(roleEnv); text != "" {
		var r role
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			panic(err)
		}
		fmt.Println("end", r.run())
		return
	}
	leaktest.Main(m)
}

func (r role) run() error {
	if len(r.Activated) > 0 {
		os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
		os.Setenv("LISTEN_FDS", strconv.Itoa(len(r.Activated)))
		os.Setenv("LISTEN_FDNAMES", strings.Join(r.Activated, ":"))
		defer func() {
			fmt.Println("environment:" + os.Getenv("LISTEN_PID") + os.Getenv("LISTEN_FDS") + os.Getenv("LISTEN_FDNAMES"))
		}()
	}
	ctx := context.Background()
	log := sdk.Logger(ctx, nil)
	if r.RunOnly {
		return sdk.Run(ctx, func(ctx context.Context) error {
			log.Info("running", "handshake", os.Getenv("PATCHBAY_HANDSHAKE"), "bad", "\xff")
			<-ctx.Done()
			log.Info("last words")
			return nil
		})
	}
	p := sdk.Plugin{
		Type: r.Type, Name: r.Name, Versions: []string{r.Version}, Socket: r.Socket,
		TakeOver: r.TakeOver, ExitOnRefusal: r.ExitOnRefusal, HandOver: r.HandOver, Drain: r.Drain,
		Register: func(s grpc.ServiceRegistrar) { v1beta1.RegisterExampleServer(s, example{version: r.Version}) },
	}
	if r.ServeOnly {
		return sdk.Serve(ctx, p)
	}
	return sdk.Run(ctx, func(ctx context.Context) error {
		if r.Again {
			ended, end := context.WithCancel(ctx)
			end()
			if err := sdk.Serve(ended, p); err != nil {
				return err
			}
		}
		return sdk.Serve(ctx, p)
	})
}

// example answers with its version and its process. A request "wait" is answered when the directory in V1Beta1Field has a file "go", and
// says so with a file "begun".
type example struct {
	v1beta1.UnimplementedExampleServer
	version string
}

func (e example) GetExampleInfo(ctx context.Context, r *v1beta1.ExampleRequest) (*v1beta1.ExampleResponse, error) {
	if r.Request == "wait" {
		if err := os.WriteFile(filepath.Join(r.V1Beta1Field, "begun"), nil, 0o600); err != nil {
			return nil, err
		}
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(r.V1Beta1Field, "go")); err == nil {
				break
			}
			pause(ctx)
		}
	}
	return &v1beta1.ExampleResponse{Error: fmt.Sprintf("%s %d", e.version, os.Getpid())}, ctx.Err()
}

// pause gives the processor away for a moment.
func pause(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	<-ctx.Done()
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); pause(context.Background()) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// child is a plugin in a process of its own.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}

	mu     sync.Mutex
	output []string // lines of stdout and stderr
}

// start starts a plugin. The files are its descriptors from 3 on.
func start(t *testing.T, r role, change ...func(*exec.Cmd)) *child {
	t.Helper()
	if r.Type == "" {
		r.Type, r.Name = "Greeter", "hello"
	}
	if r.Version == "" {
		r.Version = "1"
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), roleEnv+"="+string(text))
	for _, f := range change {
		f(c.cmd)
	}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, in := io.Pipe()
	c.cmd.Stdout, c.cmd.Stderr = in, in
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.mu.Lock()
			c.output = append(c.output, lines.Text())
			c.mu.Unlock()
		}
	})
	go func() {
		_ = c.cmd.Wait() // how it ended is in its state
		_ = in.Close()
		reading.Wait()
		close(c.ended)
	}()
	t.Cleanup(func() { c.signal(syscall.SIGKILL); c.wait() })
	return c
}

func (c *child) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.output, "\n")
}

// await waits until the child has written the text.
func (c *child) await(text string) {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for ; !strings.Contains(c.said(), text); pause(context.Background()) {
		if time.Now().After(deadline) {
			c.t.Fatalf("the plugin did not say %q but:\n%s", text, c.said())
		}
	}
}

func (c *child) signal(s syscall.Signal) { _ = c.cmd.Process.Signal(s) }

func (c *child) wait() {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(patience):
		c.t.Fatalf("the plugin does not end; it said:\n%s", c.said())
	}
}

// endsWith waits for the end and wants this of what Serve returned.
func (c *child) endsWith(text string) {
	c.t.Helper()
	c.wait()
	if !strings.Contains(c.said(), "end "+text) {
		c.t.Errorf("the plugin ended otherwise than with %q:\n%s", text, c.said())
	}
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// tempDir returns a directory with a path that is short enough for sockets.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sdk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// connect returns a client connection that makes one connection to the path and no other.
func connect(t testing.TB, path string) *grpc.ClientConn {
	t.Helper()
	raw, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return connectOn(t, raw)
}

func connectOn(t testing.TB, raw net.Conn) *grpc.ClientConn {
	t.Helper()
	only := make(chan net.Conn, 1)
	only <- raw
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-only:
				return c, nil
			default:
				return nil, errors.New("one connection was made")
			}
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// who asks the plugin at the path for its version and process; empty if nobody answers.
func who(t testing.TB, path string) string {
	t.Helper()
	raw, err := net.Dial("unix", path)
	if err != nil {
		return ""
	}
	conn := connectOn(t, raw)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	response, err := v1beta1.NewExampleClient(conn).GetExampleInfo(ctx, &v1beta1.ExampleRequest{})
	if err != nil {
		return ""
	}
	return response.Error
}

// serves waits until the child answers at the path.
func (c *child) serves(path, version string) {
	c.t.Helper()
	want := fmt.Sprintf("%s %d", version, c.pid())
	deadline := time.Now().Add(patience)
	for ; who(c.t, path) != want; pause(context.Background()) {
		if time.Now().After(deadline) {
			c.t.Fatalf("at %s is %q, want %q; the plugin said:\n%s", path, who(c.t, path), want, c.said())
		}
	}
}

// files lists a directory, hidden files included.
func files(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	slices.Sort(names)
	return names
}
