//go:build unix

package sdk_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// launch starts the plugin with a handshake.
func launch(t *testing.T, r role, pluginSocket string) *child {
	t.Helper()
	c := start(t, r, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, handshake.Env+"="+handshake.EnvValue) })
	shake := handshake.Handshake{HostSocket: filepath.Join(tempDir(t), "host.sock"), Ticket: "secret", PluginSocket: pluginSocket}
	if err := handshake.Write(c.stdin, shake); err != nil {
		t.Fatal(err)
	}
	return c
}

// end closes the standard input of the child.
func (c *child) end() { _ = c.stdin.Close() }

func TestLaunched(t *testing.T) {
	path := filepath.Join(tempDir(t), "given.sock")
	plugin := launch(t, role{Socket: "/nowhere/s"}, path)
	plugin.serves(path, "1")
	plugin.end()
	plugin.endsWith("<nil>")
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is left")
	}
}

// TestMadeListener: on a socket that its host has made a plugin says who it is before it serves, and heeds signals soon after.
func TestMadeListener(t *testing.T) {
	for wait := 100 * time.Millisecond; ; wait *= 2 { // that at which it heeds them
		path := filepath.Join(tempDir(t), "given.sock")
		made, err := sock.Make(path)
		if err == nil {
			err = made.Bind()
		}
		if err != nil {
			t.Fatal(err)
		}
		introduction, pen, err := handshake.NewIntroduction()
		if err != nil {
			t.Fatal(err)
		}
		shake := handshake.Handshake{
			HostSocket: filepath.Join(tempDir(t), "host.sock"), Ticket: "secret", PluginSocket: path, Listener: &handshake.Listener{FD: 3, Path: made.Path},
		}
		plugin := start(t, role{ServeOnly: true}, func(cmd *exec.Cmd) {
			cmd.Env = append(cmd.Env, handshake.Env+"="+handshake.EnvValue)
			if cmd.ExtraFiles = []*os.File{made.File}; pen != nil {
				cmd.ExtraFiles, shake.Listener.Introduction = append(cmd.ExtraFiles, pen), 4
			}
		})
		_ = made.File.Close()
		if pen != nil {
			_ = pen.Close()
		}
		if err := handshake.Write(plugin.stdin, shake); err != nil {
			t.Fatal(err)
		}
		plugin.serves(path, "1")
		var info registerapi.PluginInfo
		if err := proto.Unmarshal(introduction.Take(), &info); err != nil || pen != nil && info.Name != "hello" {
			t.Errorf("it has said that it is %v, %v", &info, err)
		}
		time.Sleep(wait)
		plugin.signal(syscall.SIGTERM)
		plugin.wait()
		if strings.Contains(plugin.said(), "end <nil>") {
			return
		}
		if wait > patience {
			t.Fatalf("after %v a signal ends it, not Serve:\n%s", wait, plugin.said())
		}
	}
}

func TestLaunchedPluginIsStoppedBySignal(t *testing.T) {
	path := filepath.Join(tempDir(t), "given.sock")
	plugin := launch(t, role{}, path)
	plugin.serves(path, "1")
	plugin.signal(syscall.SIGTERM)
	plugin.endsWith("<nil>")
}

// TestLaunchedLog checks that the log is on standard error, the last record too, and that the handshake is not left in the environment.
func TestLaunchedLog(t *testing.T) {
	plugin := launch(t, role{RunOnly: true}, "")
	plugin.await(`"msg":"running","handshake":"","bad":"\ufffd"}`)
	plugin.end()
	plugin.endsWith("<nil>")
	if !strings.Contains(plugin.said(), `"msg":"last words"`) {
		t.Errorf("the last record is missing:\n%s", plugin.said())
	}
}

func TestLaunchedToServeNothing(t *testing.T) {
	launch(t, role{Socket: "/nowhere/s"}, "").endsWith("cannot serve plugin Greeter/hello: the host that launched it named no socket")
}

func TestHandshakeIsBroken(t *testing.T) {
	c := start(t, role{}, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, handshake.Env+"="+handshake.EnvValue) })
	if _, err := c.stdin.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	c.endsWith("cannot read the host's handshake: the line on standard input is not a handshake")
}

// TestStandardInputIsLeftAlone starts a plugin without a handshake; the end of its standard input means nothing to it.
func TestStandardInputIsLeftAlone(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	plugin := start(t, role{Socket: path})
	plugin.end()
	plugin.serves(path, "1")
	plugin.signal(syscall.SIGTERM)
	plugin.endsWith("<nil>")
}
