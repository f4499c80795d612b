package pluginclient

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"

	"github.com/hashicorp/go-hclog"
	library "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"

	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/launch/sealedexec"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// refused returns an error if a configuration uses a field that is not supported. With Reattach, the library itself checks.
func refused(config *library.ClientConfig) error {
	cmd := config.Cmd
	switch {
	case config.Reattach != nil:
		return nil
	case config.RunnerFunc != nil:
		return notOffered("RunnerFunc", "the launcher starts the program of Cmd itself; use plugin.NewClient for other runners")
	case !slices.Contains(config.AllowedProtocols, library.ProtocolGRPC):
		return errors.New("plugins that speak net/rpc are not offered; serve gRPC, and allow it with AllowedProtocols")
	case cmd == nil || cmd.Path == "":
		return errors.New("no program is to be started; set Cmd or Reattach")
	case cmd.Err != nil:
		return cmd.Err
	}
	for _, field := range []struct {
		set           bool
		name, instead string
	}{
		{cmd.Stdin != nil, "Stdin", "the plugin's standard input is empty; use ExtraFiles or a call"},
		{cmd.Stdout != nil, "Stdout", "the handshake is there; use SyncStdout"},
		{cmd.Stderr != nil, "Stderr", "use ClientConfig.Stderr"},
		{cmd.SysProcAttr != nil, "SysProcAttr", "change the launcher.Plugin with an option of NewClient"},
		{cmd.Process != nil, "Process", "give each client a Cmd that was not started"},
		{cmd.ProcessState != nil, "ProcessState", "give each client a Cmd that was not started"},
		{isCustom(cmd.Cancel), "Cancel", "the end of the context is a Kill; set StopTimeout with an option of NewClient"},
		{cmd.WaitDelay != 0, "WaitDelay", "set StopTimeout with an option of NewClient"},
		{len(cmd.Args) > 0 && filepath.Base(cmd.Args[0]) != filepath.Base(cmd.Path), "Args[0]", "it is Path; use a link of that name"},
	} {
		if field.set {
			return notOffered("Cmd."+field.name, field.instead)
		}
	}
	return nil
}

func notOffered(field, instead string) error {
	return fmt.Errorf("%s is not offered by pluginclient: %s", field, instead)
}

// isCustom reports whether cancel is not the function that [exec.CommandContext] sets.
func isCustom(cancel func() error) bool {
	usual := exec.CommandContext(context.Background(), "true").Cancel
	return cancel != nil && reflect.ValueOf(cancel).Pointer() != reflect.ValueOf(usual).Pointer()
}

// contextOf returns the unexported context of a command of [exec.CommandContext].
func contextOf(cmd *exec.Cmd) (context.Context, error) {
	if cmd.Cancel == nil {
		return context.Background(), nil
	}
	field := reflect.ValueOf(cmd).Elem().FieldByName("ctx")
	if field.IsValid() && field.CanAddr() {
		if ctx, ok := reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem().Interface().(context.Context); ok {
			return ctx, nil
		}
	}
	return nil, notOffered("the context of Cmd", "use exec.Command, and context.AfterFunc with Kill")
}

// checked checks the checksum of a program. It returns the program's SHA-256 and, for a script, its interpreter. With them the launcher
// runs exactly what was checked, even if the file is replaced later.
func checked(config *library.SecureConfig, path string) (digest, interpreter string, err error) {
	switch {
	case len(config.Checksum) == 0:
		err = library.ErrSecureConfigNoChecksum
	case config.Hash == nil:
		err = library.ErrSecureConfigNoHash
	}
	if err != nil {
		return "", "", fmt.Errorf("cannot check %s: %w; set it in SecureConfig", path, err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	config.Hash.Reset()
	_, _ = config.Hash.Write(program) // a hash does not fail
	if !bytes.Equal(config.Hash.Sum(nil), config.Checksum) {
		return "", "", library.ErrChecksumsDoNotMatch
	}
	script, err := sealedexec.ParseScript(program)
	if script != nil {
		interpreter = script.Interpreter
	}
	sum := sha256.Sum256(program)
	return hex.EncodeToString(sum[:]), interpreter, err
}

// attach uses a plugin that another process has started. The plugin is not launched, watched or restarted.
func (c *Client) attach(ctx context.Context) error {
	if err := checkPeer(ctx, c.config.Reattach); err != nil {
		return err
	}
	attached := library.NewClient(c.config)
	c.attached.Store(attached)
	_, err := attached.Client()
	return err
}

// checkPeer returns an error if the process to attach to is not the one that serves at the address: Kill would end another process.
func checkPeer(ctx context.Context, to *library.ReattachConfig) error {
	address, isUnix := to.Addr.(*net.UnixAddr)
	if to.ReattachFunc != nil || !isUnix {
		return nil // the process behind a ReattachFunc or a TCP address is unknown
	}
	conn, err := sock.Dial(ctx, address.Name)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return library.ErrProcessNotFound // not wrapped: hosts compare with ==
	case err != nil:
		return fmt.Errorf("cannot attach to process %d: %w", to.Pid, err)
	}
	peer, err := sock.PeerOf(conn)
	_ = conn.Close()
	// A common ancestor of this process and the plugin, such as a shell, is not the plugin.
	own := os.Getpid()
	if err == nil && peer.PID != to.Pid && (!process.Descends(peer.PID, to.Pid) || own == to.Pid || process.Descends(own, to.Pid)) {
		err = fmt.Errorf("process %d serves at %s; start the plugin again", peer.PID, address.Name)
	}
	if err != nil {
		return fmt.Errorf("cannot attach to process %d: %w: %w", to.Pid, library.ErrProcessNotFound, err)
	}
	return nil
}

// manage registers a client of the library that represents c, so that the library's CleanupClients kills the plugin.
func (c *Client) manage() {
	attach := func() (runner.AttachedRunner, error) { return managed{client: c}, nil }
	_, _ = library.NewClient(&library.ClientConfig{
		Managed: true, Logger: hclog.NewNullLogger(), Reattach: &library.ReattachConfig{ReattachFunc: attach},
	}).Start() // fails only if attach does
}

// managed represents a plugin in a managed client of the library. It implements [runner.AttachedRunner].
type managed struct {
	runner.AddrTranslator // nil: no address is translated

	client *Client
}

func (managed) ID() string { return name }

func (m managed) Kill(context.Context) error {
	m.client.Kill()
	return nil
}

// Wait returns immediately. The library still kills the plugin.
func (managed) Wait(context.Context) error { return nil }
