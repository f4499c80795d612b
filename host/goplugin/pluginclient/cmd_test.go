//go:build unix

package pluginclient_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	library "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/host/goplugin/pluginclient"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !holds(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come about", what)
		}
	}
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	await(t, path, func() bool {
		text, err := os.ReadFile(path)
		return err == nil && len(text) > 0
	})
}

// TestNoEnvironment: a plugin that inherits nothing has the variables of its handshake only, also if Cmd.Env is nil, as exec.Command makes it.
func TestNoEnvironment(t *testing.T) {
	t.Setenv("SECRET_OF_THE_HOST", "s3cret")
	for name, env := range map[string][]string{"nil": nil, "empty": {}} {
		c := config("")
		c.Cmd.Env, c.SkipHostEnv = env, true
		p := dispense(t, newClient(t, c))
		if got, err := p.ask("env SECRET_OF_THE_HOST"); err != nil || got != "" {
			t.Errorf("Cmd.Env is %s: the plugin has SECRET_OF_THE_HOST=%q, %v", name, got, err)
		}
	}
}

// TestRelative: a relative program is that in Cmd.Dir, as os/exec has it, and not that in the host's directory.
func TestRelative(t *testing.T) {
	dir, own := t.TempDir(), t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "bin"), 0o700), os.Symlink(os.Args[0], filepath.Join(dir, "bin", "talker")),
		os.Symlink(os.Args[0], filepath.Join(dir, "talker")), os.Mkdir(filepath.Join(own, "bin"), 0o700),
		os.Symlink("/bin/false", filepath.Join(own, "bin", "talker")), os.Symlink("/bin/false", filepath.Join(own, "talker"))); err != nil {
		t.Fatal(err)
	}
	t.Chdir(own)
	t.Setenv("PATH", own)
	for _, path := range []string{"bin/talker", "./bin/talker", "talker"} {
		c := config("serve")
		c.Cmd.Path, c.Cmd.Args, c.Cmd.Dir = path, []string{path}, dir
		client := newClient(t, c)
		if _, err := client.Client(); err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		answers(t, dir, func() (string, error) { return dispense(t, client).ask("dir") })
	}
}

// TestCommandContext: the end of the context of exec.CommandContext ends the plugin, and no plugin starts after it.
func TestCommandContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	started := filepath.Join(t.TempDir(), "started")
	c := config("serve")
	env := c.Cmd.Env
	c.Cmd = exec.CommandContext(ctx, os.Args[0])
	c.Cmd.Env = env
	client := newClient(t, c)
	dispense(t, client)
	cancel()
	await(t, "the end of the plugin", client.Exited)
	c = config("late", fileEnv+"="+started)
	env = c.Cmd.Env
	c.Cmd = exec.CommandContext(ctx, os.Args[0])
	c.Cmd.Env, c.StartTimeout = env, 200*time.Millisecond
	if _, err := newClient(t, c).Client(); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("a plugin was started after the end of the context")
	}
}

// TestExtraFiles: the plugin inherits Cmd.ExtraFiles.
func TestExtraFiles(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if _, err := io.WriteString(write, "extra"); err != nil {
		t.Fatal(err)
	}
	c := config("serve")
	c.Cmd.ExtraFiles = []*os.File{read}
	p := dispense(t, newClient(t, c))
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	answers(t, "extra", func() (string, error) { return p.ask("file") })
}

// TestNotOffered: what is not offered is refused before there is a process, with an error that names the field.
func TestNotOffered(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*library.ClientConfig)
		want   string
	}{
		"RunnerFunc without Cmd": {func(c *library.ClientConfig) {
			c.Cmd = nil
			c.RunnerFunc = func(hclog.Logger, *exec.Cmd, string) (runner.Runner, error) { return nil, errors.New("not called") }
		}, "RunnerFunc is not offered"},
		"RunnerFunc": {func(c *library.ClientConfig) {
			c.RunnerFunc = func(hclog.Logger, *exec.Cmd, string) (runner.Runner, error) { return nil, errors.New("not called") }
		}, "RunnerFunc is not offered"},
		"Cmd.SysProcAttr":               {func(c *library.ClientConfig) { c.Cmd.SysProcAttr = &syscall.SysProcAttr{} }, "Cmd.SysProcAttr is not offered"},
		"Cmd.Stdin":                     {func(c *library.ClientConfig) { c.Cmd.Stdin = strings.NewReader("") }, "Cmd.Stdin is not offered"},
		"Cmd.Stdin of the host":         {func(c *library.ClientConfig) { c.Cmd.Stdin = os.Stdin }, "Cmd.Stdin is not offered"},
		"Cmd.Stdout":                    {func(c *library.ClientConfig) { c.Cmd.Stdout = io.Discard }, "Cmd.Stdout is not offered"},
		"Cmd.Stderr":                    {func(c *library.ClientConfig) { c.Cmd.Stderr = io.Discard }, "Cmd.Stderr is not offered"},
		"Cmd.Process":                   {func(c *library.ClientConfig) { c.Cmd.Process = &os.Process{} }, "Cmd.Process is not offered"},
		"Cmd.ProcessState":              {func(c *library.ClientConfig) { c.Cmd.ProcessState = &os.ProcessState{} }, "Cmd.ProcessState is not offered"},
		"Cmd.Cancel":                    {func(c *library.ClientConfig) { c.Cmd.Cancel = func() error { return nil } }, "Cmd.Cancel is not offered"},
		"Cmd.WaitDelay":                 {func(c *library.ClientConfig) { c.Cmd.WaitDelay = time.Second }, "Cmd.WaitDelay is not offered"},
		"Cmd.Args[0]":                   {func(c *library.ClientConfig) { c.Cmd.Args = []string{"other"} }, "Cmd.Args[0] is not offered"},
		"a program that is not in PATH": {func(c *library.ClientConfig) { c.Cmd = exec.Command("no-such-program") }, "executable file not found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			started := filepath.Join(t.TempDir(), "started")
			c := config("late", fileEnv+"="+started)
			c.StartTimeout = 300 * time.Millisecond
			tc.change(c)
			if _, err := newClient(t, c).Start(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if _, err := os.Stat(started); err == nil {
				t.Error("a process was started")
			}
		})
	}
}

// TestOptionsNotOffered: options of the launcher with which nothing could be dispensed are refused.
func TestOptionsNotOffered(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]func(*launcher.Plugin){
		"OnDemand":        func(p *launcher.Plugin) { p.OnDemand = true },
		"UpgradeHandover": func(p *launcher.Plugin) { p.Upgrade = plugin.UpgradeHandover },
	} {
		client := pluginclient.NewClient(config("serve"), option, func(p *launcher.Plugin) { p.StartTimeout = 2 * time.Second })
		t.Cleanup(client.Kill)
		if _, err := client.Client(); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "not offered") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestExclusive: of what excludes each other in the library one may be set here, too.
func TestExclusive(t *testing.T) {
	t.Parallel()
	c := config("serve")
	c.Reattach = &library.ReattachConfig{}
	if _, err := newClient(t, c).Start(); err == nil || !strings.Contains(err.Error(), "exactly one of Cmd, or Reattach") {
		t.Errorf("Cmd and Reattach: %v", err)
	}
	c = config("serve")
	c.Cmd, c.Reattach, c.SecureConfig = nil, &library.ReattachConfig{Protocol: library.ProtocolGRPC}, &library.SecureConfig{}
	if _, err := newClient(t, c).Start(); !errors.Is(err, library.ErrSecureConfigAndReattach) {
		t.Errorf("SecureConfig and Reattach: %v", err)
	}
}

// TestSentinels: the library's errors can be recognized.
func TestSentinels(t *testing.T) {
	t.Parallel()
	for want, change := range map[error]func(*library.ClientConfig){
		library.ErrSecureConfigNoChecksum: func(c *library.ClientConfig) { c.SecureConfig = &library.SecureConfig{Hash: sha256.New()} },
		library.ErrSecureConfigNoHash:     func(c *library.ClientConfig) { c.SecureConfig = &library.SecureConfig{Checksum: []byte("some")} },
		library.ErrGRPCBrokerMuxNotSupported: func(c *library.ClientConfig) {
			c.GRPCBrokerMultiplex = true
			c.Cmd.Path, c.Cmd.Args = "/bin/sh", []string{"sh", "-c", "echo '1|3|unix|/nowhere|grpc|'; exec sleep 1000"}
		},
	} {
		c := config("serve")
		change(c)
		if _, err := newClient(t, c).Start(); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

// TestScript: SecureConfig takes scripts, as the library's does.
func TestScript(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "talker.sh")
	text := "#!/bin/sh\nexec " + os.Args[0] + "\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(text))
	c := config("serve")
	c.Cmd.Path, c.Cmd.Args = script, []string{script}
	c.SecureConfig = &library.SecureConfig{Checksum: sum[:], Hash: sha256.New()}
	dispense(t, newClient(t, c))
}

// TestSocketDir: the plugin's sockets are in UnixSocketConfig.TempDir.
func TestSocketDir(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	c := config("serve")
	c.UnixSocketConfig = &library.UnixSocketConfig{TempDir: dir}
	client := newClient(t, c)
	address, err := client.Start()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(address.String(), dir) {
		t.Errorf("it serves at %s, and TempDir is %s", address, dir)
	}
	c = config("serve")
	c.UnixSocketConfig = &library.UnixSocketConfig{TempDir: "/no/such/dir"}
	if _, err := newClient(t, c).Start(); err == nil || !strings.Contains(err.Error(), "TempDir") {
		t.Error(err)
	}
}

// TestCleanupClients: the library's own CleanupClients ends Managed clients.
func TestCleanupClients(t *testing.T) {
	c := config("serve")
	c.Managed = true
	client := newClient(t, c)
	dispense(t, client)
	library.CleanupClients()
	if !client.Exited() {
		t.Error("it runs after plugin.CleanupClients")
	}
}

// TestSlowAnswer: nothing but StartTimeout limits when the plugin answers first.
func TestSlowAnswer(t *testing.T) {
	t.Parallel()
	dispense(t, newClient(t, config("slow")))
}

// TestKillDuringStart: Kill ends a plugin that is starting, and does not wait until it has started.
func TestKillDuringStart(t *testing.T) {
	t.Parallel()
	started := filepath.Join(t.TempDir(), "started")
	c := config("late", fileEnv+"="+started)
	c.StartTimeout = time.Hour
	client := newClient(t, c)
	failed, killed := make(chan error, 1), make(chan struct{})
	go func() {
		_, err := client.Start()
		failed <- err
	}()
	awaitFile(t, started)
	go func() {
		defer close(killed)
		client.Kill()
	}()
	for range 2 {
		select {
		case err := <-failed:
			if err == nil {
				t.Error("Start returned without an error")
			}
			failed = nil
		case <-killed:
			killed = nil
		case <-time.After(time.Minute):
			t.Fatal("Kill has not ended the start within a minute")
		}
	}
	if !client.Exited() {
		t.Error("it has not ended")
	}
}

// TestKillAnyTime: Kill at any point of Start leaves no directory, and leaktest finds nothing else.
func TestKillAnyTime(t *testing.T) {
	dir := shortDir(t)
	t.Setenv("TMPDIR", dir)
	for i := range 24 {
		client := pluginclient.NewClient(config("serve"))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = client.Start()
		}()
		<-time.After(time.Duration(i*i) * time.Millisecond / 2)
		client.Kill()
		<-ended
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestClientsDuringKill: a Client that Kill overtakes leaves nothing, which leaktest looks for, and a plugin that is starting has not exited.
func TestClientsDuringKill(t *testing.T) {
	for range 10 {
		client := pluginclient.NewClient(config("serve"))
		var asking sync.WaitGroup
		starting := make(chan struct{})
		asking.Go(func() {
			for {
				select {
				case <-starting:
					return
				default:
					if client.Exited() {
						t.Error("a plugin that is starting has exited")
						return
					}
				}
			}
		})
		if _, err := client.Client(); err != nil {
			t.Error(err)
		}
		close(starting)
		asking.Wait()
		for range 32 {
			asking.Go(func() {
				for {
					if _, err := client.Client(); err != nil {
						return
					}
				}
			})
		}
		client.Kill()
		asking.Wait()
	}
}

// TestDeadline: a call whose time ends while it waits for a restart says so, as calls of gRPC do.
func TestDeadline(t *testing.T) {
	t.Parallel()
	client := pluginclient.NewClient(config("serve"), func(p *launcher.Plugin) {
		p.Restart.Backoff.Min, p.Restart.Backoff.Max = time.Hour, time.Hour
	})
	t.Cleanup(client.Kill)
	p := dispense(t, client)
	kill(t, client.ID())
	var err error
	await(t, "the end of the time of a call", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = p.client.GetExampleInfo(ctx, &v1beta1.ExampleRequest{})
		return err != nil && ctx.Err() != nil
	})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
}

// TestRestartNever: with an option a plugin that crashes has ended, as in the library, and calls fail immediately.
func TestRestartNever(t *testing.T) {
	t.Parallel()
	client := pluginclient.NewClient(config("serve"), func(p *launcher.Plugin) { p.Restart.Policy = plugin.RestartNever })
	t.Cleanup(client.Kill)
	p := dispense(t, client)
	if _, err := p.ask("exit"); err == nil {
		t.Error("it has not ended")
	}
	await(t, "the end of the plugin", client.Exited)
	if _, err := p.ask(""); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "not restarted") && !strings.Contains(err.Error(), "has ended") {
		t.Errorf("after the end: %v", err)
	}
	if _, err := client.Client(); err == nil {
		t.Error("it has a client after its end")
	}
}
