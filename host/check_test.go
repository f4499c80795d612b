//go:build linux

package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/launch/sealedexec"
	"github.com/patchbay-dev/patchbay/plugin"
)

// program makes an executable file and returns its digest.
func program(t testing.TB, path string, content []byte) (digest string) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o755); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	return sha256Of(content)
}

func sha256Of(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func readProgram(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// printed waits for the end of a plugin and returns the lines that it printed.
func printed(t testing.TB, p *PluginProcess) []string {
	t.Helper()
	done(t, p)
	var lines []string
	for _, r := range p.Logs().Tail(0) {
		lines = append(lines, r.Message)
	}
	return lines
}

func TestCopyIsExecuted(t *testing.T) {
	h := newHost(t)
	spec := self("polite")
	spec.SHA256 = sha256Of(readProgram(t, os.Args[0]))
	spec.NoNewPrivs = true
	p := launch(t, h, spec)
	if line := said(t, p)(); line != "up" {
		t.Fatal(line)
	}
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID()))
	if want := "/memfd:" + filepath.Base(os.Args[0]) + " (deleted)"; link != want || err != nil {
		t.Errorf("it executes %q, %v, want %q", link, err, want)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID()))
	if want := os.Args[0] + "\x00"; string(line) != want || err != nil {
		t.Errorf("its command line is %q, %v, want %q", line, err, want)
	}
	if got := sha256Of(readProgram(t, fmt.Sprintf("/proc/%d/exe", p.PID()))); got != spec.SHA256 {
		t.Errorf("the digest of what runs is %s, want %s", got, spec.SHA256)
	}
}

func TestOtherDigest(t *testing.T) {
	h := newHost(t)
	events := newEvents()
	h.Events = events.add
	path := filepath.Join(t.TempDir(), "program")
	is, want := program(t, path, readProgram(t, "/bin/true")), strings.Repeat("ab", 32)
	_, err := h.Launch(t.Context(), Spec{Args: []string{path}, SHA256: want})
	if !errors.Is(err, plugin.ErrDigest) || !strings.Contains(err.Error(), is) || !strings.Contains(err.Error(), want) {
		t.Errorf("another digest: %v", err)
	}
	if _, err := h.Launch(t.Context(), Spec{Args: []string{path}, SHA256: "ab"}); err == nil || errors.Is(err, plugin.ErrDigest) {
		t.Errorf("no digest: %v", err)
	}
	if len(events.list) > 0 || len(h.Plugins()) > 0 {
		t.Errorf("something was launched: %v", events.list)
	}
}

// Somebody rewrites the program in place, or puts another in its place, at every moment of many launches. Whatever is launched is good.
func TestSwappedProgram(t *testing.T) {
	good, evil := readProgram(t, "/bin/true"), readProgram(t, "/bin/false")
	script := func(status int) []byte { return fmt.Appendf(nil, "#!/bin/sh\nexit %d\n", status) }
	tests := map[string]struct {
		good, evil []byte
		admitted   bool // by admission, not by a digest in the configuration
	}{
		"program":           {good, evil, false},
		"script":            {script(0), script(1), false},
		"admitted program":  {good, evil, true},
		"admitted script":   {script(0), script(1), true},
		"program or script": {good, script(1), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			dir := t.TempDir()
			path := filepath.Join(dir, "program")
			digest := program(t, path, test.good)
			spec := Spec{Args: []string{path}, Interpreter: "/bin/sh", NoNewPrivs: true}
			refused := errors.New("refused")
			if !test.admitted {
				spec.SHA256, refused = digest, plugin.ErrDigest
			} else {
				parsed, err := sealedexec.ParseDigest(digest)
				if err != nil {
					t.Fatal(err)
				}
				spec.Admit = func(_ context.Context, pin plugin.Pin) error {
					if pin.InstanceID != parsed.InstanceID() {
						return refused
					}
					return nil
				}
			}
			stop, swapping := swap(t, path, test.good, test.evil)
			const launches = 150
			ran := 0
			for range launches {
				p, err := h.Launch(t.Context(), spec)
				switch {
				case err == nil:
					ran++
					done(t, p)
					if !errors.Is(p.Err(), ErrTerminated) {
						t.Fatalf("what was not checked ran: %v", p.Err())
					}
				case !errors.Is(err, refused) && !errors.Is(err, sealedexec.ErrUnfit):
					t.Errorf("launch: %v", err)
				}
			}
			close(stop)
			swapping.Wait()
			t.Logf("%d of %d launches ran", ran, launches)
			program(t, path, test.good)
			if p := launch(t, h, spec); !slices.Equal(printed(t, p), []string(nil)) || !errors.Is(p.Err(), ErrTerminated) {
				t.Errorf("the good program at last: %v", p.Err())
			}
		})
	}
}

// swap rewrites and replaces a program until stop is closed.
func swap(t *testing.T, path string, contents ...[]byte) (stop chan struct{}, swapping *sync.WaitGroup) {
	t.Helper()
	stop, swapping = make(chan struct{}), &sync.WaitGroup{}
	swapping.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			content := contents[n/2%len(contents)]
			if n%2 == 0 { // in place
				_ = os.WriteFile(path, content, 0o755)
				continue
			}
			_ = os.WriteFile(path+".new", content, 0o755)
			_ = os.Rename(path+".new", path)
		}
	})
	return stop, swapping
}

func TestScript(t *testing.T) {
	h := newHost(t)
	path := filepath.Join(t.TempDir(), "script")
	digest := program(t, path, []byte("#!/bin/sh -u\necho \"$0\" \"$@\"\nreadlink /proc/$$/exe | grep -c memfd\n"))
	launchAs := func(interpreter string) (*PluginProcess, error) {
		return h.Launch(t.Context(), Spec{Args: []string{path, "a", "b c"}, SHA256: digest, Interpreter: interpreter})
	}
	for listed, says := range map[string]string{"": "list /bin/sh as its interpreter", "/bin/bash": "is a script for /bin/sh, and the interpreter"} {
		if _, err := launchAs(listed); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("with the interpreter %q: %v", listed, err)
		}
	}
	p, err := launchAs("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/proc/self/fd/3 a b c", "0"}, printed(t, p)); diff != "" {
		t.Error(diff)
	}
}

func TestEnvironmentIsListed(t *testing.T) {
	t.Setenv("INHERITED", "1")
	h := newHost(t)
	for name, spec := range map[string]Spec{
		"none": {Env: []string{}},
		"file": {Env: []string{"A=1", "B=x y"}},
		"copy": {Env: []string{"A=1", "B=x y"}, SHA256: sha256Of(readProgram(t, "/usr/bin/env")), NoNewPrivs: true},
	} {
		spec.Args = []string{"/usr/bin/env"}
		if diff := cmp.Diff(append(spec.Env, "PATCHBAY_HANDSHAKE=stdin"), printed(t, launch(t, h, spec))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestAdmit(t *testing.T) {
	h := newHost(t)
	content := readProgram(t, "/bin/true")
	path := filepath.Join(t.TempDir(), "program")
	digest, err := sealedexec.ParseDigest(program(t, path, content))
	if err != nil {
		t.Fatal(err)
	}
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, true)
	refused := errors.New("not today")
	var asked []plugin.Pin
	answer := refused
	spec := Spec{Name: "name", Args: []string{path}, Admit: func(ctx context.Context, pin plugin.Pin) error {
		if ctx.Value(key{}) == nil {
			t.Error("another context")
		}
		asked = append(asked, pin)
		// What is done to the file now is too late.
		program(t, path, readProgram(t, "/bin/false"))
		return answer
	}}
	if _, err := h.Launch(ctx, spec); !errors.Is(err, refused) {
		t.Errorf("refused: %v", err)
	}
	answer = nil
	program(t, path, content)
	p, err := h.Launch(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	if done(t, p); !errors.Is(p.Err(), ErrTerminated) {
		t.Errorf("what ran was not what was admitted: %v", p.Err())
	}
	spec.SHA256 = strings.Repeat("0", 64)
	if _, err := h.Launch(ctx, spec); !errors.Is(err, plugin.ErrDigest) {
		t.Errorf("another digest: %v", err)
	}
	pin := plugin.Pin{PackageName: "name", InstanceID: digest.InstanceID()}
	if diff := cmp.Diff([]plugin.Pin{pin, pin}, asked); diff != "" {
		t.Error(diff)
	}
}

// All that is checked and limited at once, and a life as that of any other plugin.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run a plugin as somebody else")
	}
	h := newHost(t)
	plugins := filepath.Join(t.TempDir(), "plugins")
	if err := os.Mkdir(plugins, 0o750); err != nil {
		t.Fatal(err)
	}
	// t.TempDir lets nobody else through.
	for dir := filepath.Dir(plugins); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	spec := self("other user")
	spec.SHA256, spec.Dir = sha256Of(readProgram(t, os.Args[0])), "/"
	spec.User, spec.Group, spec.NoNewPrivs, spec.Limits = "12345", "23456", true, plugin.Limits{OpenFiles: 99}
	spec.PluginSocket = filepath.Join(plugins, "name.1", "plugin.sock")
	p := launch(t, h, spec)
	if line := said(t, p)(); line != "12345 23456 []" && line != "12345 23456 [23456]" {
		t.Fatalf("it runs as %q", line)
	}
	for path, want := range map[string]os.FileMode{
		plugins: 0o751, filepath.Dir(spec.PluginSocket): 0o700, h.server.dir.path: 0o711, h.server.path: 0o666,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want mode %v", path, info.Mode(), err, want)
		}
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", p.PID()))
	if err != nil || !strings.Contains(string(limits), "Max open files            99                   99") {
		t.Errorf("its limits: %s, %v", limits, err)
	}
	if err := p.Terminate(t.Context()); !errors.Is(err, ErrTerminated) {
		t.Error(err)
	}
	if left, err := os.ReadDir(plugins); err != nil || len(left) > 0 {
		t.Errorf("left in the plugin directory: %v, %v", left, err)
	}
}

// A user who is that of the host, or a group alone, gets a directory to serve in as well.
func TestOwnUser(t *testing.T) {
	own := strconv.Itoa(os.Geteuid())
	tests := map[string]Spec{"user": {User: own}}
	if os.Geteuid() == 0 {
		tests["group"] = Spec{Group: "23456"}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			spec := self("other user")
			spec.User, spec.Group, spec.PluginSocket = test.User, test.Group, filepath.Join(t.TempDir(), "name.1", "plugin.sock")
			p := launch(t, h, spec)
			if line := said(t, p)(); !strings.HasPrefix(line, own+" "+test.Group) {
				t.Errorf("it runs as %q", line)
			}
			dir := filepath.Dir(spec.PluginSocket)
			if info, err := os.Stat(dir); err != nil || info.Mode() != os.ModeDir|0o700 {
				t.Errorf("its directory: %v, %v", info, err)
			}
			if err := p.Terminate(t.Context()); !errors.Is(err, ErrTerminated) {
				t.Error(err)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("its directory is left: %v", err)
			}
		})
	}
}

// The host serves for a foreign plugin, in a directory that is not the plugin's.
func TestForeignUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run a plugin as somebody else")
	}
	h, parent := newHost(t), t.TempDir()
	launch(t, h, Spec{Args: []string{"/bin/sh", "-c", "read line; read end; exit 0"}}) // for which the host has a directory
	p := launch(t, h, Spec{
		Args: []string{"/bin/sh", "-c", "read line; exit 0"}, Dir: "/", Adapter: silent{},
		User: "12345", Group: "23456", PluginSocket: filepath.Join(parent, "name.1", "plugin.sock"),
	})
	before, err := os.Stat(parent)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{parent: before.Mode().Perm(), filepath.Dir(p.PluginSocket()): 0o700, h.server.dir.path: 0o700} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %+v", path, info.Mode(), info.Sys())
		}
	}
	if err := p.Terminate(t.Context()); !errors.Is(err, ErrTerminated) {
		t.Error(err)
	}
}

// silent is a foreign protocol in which nothing is said.
type silent struct{}

func (silent) Hello(io.Reader)                   {}
func (silent) Stderr(stderr io.Reader) io.Reader { return stderr }
func (silent) Stop(context.Context)              {}
func (silent) Ended()                            {}

func (silent) Health() (grpc.ClientConnInterface, string) { return nil, "" }

func TestMakeSearchable(t *testing.T) {
	dir := t.TempDir()
	for before, want := range map[os.FileMode]os.FileMode{
		0o750:                                 0o751,
		0o770 | os.ModeSticky:                 0o771 | os.ModeSticky, // nobody may remove the sockets of others afterwards either
		0o770 | os.ModeSticky | os.ModeSetgid: 0o771 | os.ModeSticky | os.ModeSetgid,
		0o755 | os.ModeSetgid:                 0o755 | os.ModeSetgid,
	} {
		if err := errors.Join(os.Chmod(dir, before), makeSearchable(dir)); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode() != os.ModeDir|want {
			t.Errorf("%v: %v, %v, want %v", before, info.Mode(), err, want)
		}
	}
}

func TestIdentify(t *testing.T) {
	tests := map[string]struct {
		user, group string
		want        *process.User
		err         string
	}{
		"none":               {"", "", nil, ""},
		"name":               {"root", "", &process.User{}, ""},
		"number":             {"0", "", &process.User{}, ""},
		"group by name":      {"0", "root", &process.User{}, ""},
		"unknown number":     {"54321", "", nil, "configure a group too"},
		"unknown with group": {"54321", "65432", &process.User{UID: 54321, GID: 65432}, ""},
		"group alone":        {"", "65432", &process.User{GID: 65432}, ""},
		"unknown user":       {"no-such-user", "", nil, "run as user no-such-user"},
		"unknown group":      {"0", "no-such-group", nil, "run as group no-such-group"},
		"no change":          {"4294967295", "0", nil, "run as user 4294967295"},
		"negative":           {"-1", "0", nil, "run as user -1"},
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can run a plugin as somebody else")
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := identify(test.user, test.group)
			if diff := cmp.Diff(test.want, got); diff != "" || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s, error %v, want %q", diff, err, test.err)
			}
		})
	}
}

// BenchmarkChecked compares the launch of a program from its file with that from a kept copy of it.
func BenchmarkChecked(b *testing.B) {
	content := readProgram(b, "/bin/true")
	for name, spec := range map[string]Spec{
		"file":   {},
		"copy":   {SHA256: sha256Of(content)},
		"nnp":    {SHA256: sha256Of(content), NoNewPrivs: true},
		"limits": {SHA256: sha256Of(content), NoNewPrivs: true, Limits: plugin.Limits{OpenFiles: 100}},
		"user":   {SHA256: sha256Of(content), User: "12345", Group: "12345"},
		"all": {SHA256: sha256Of(content), NoNewPrivs: true, User: "12345", Group: "12345",
			Limits: plugin.Limits{OpenFiles: 100, Memory: 1 << 28, CPU: 1000}},
		"cgroup": {SHA256: sha256Of(content), NoNewPrivs: true, Limits: plugin.Limits{Memory: 1 << 28, CPU: 1000}},
	} {
		b.Run(name, func(b *testing.B) {
			h := newHost(b)
			if spec.User != "" && os.Geteuid() != 0 {
				b.Skip("only root can run a plugin as somebody else")
			}
			spec.Args, spec.Env = []string{"/bin/true"}, []string{}
			for b.Loop() {
				p := launch(b, h, spec)
				<-p.Done()
			}
		})
	}
}
