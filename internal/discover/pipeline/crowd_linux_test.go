package pipeline

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// TestNewcomerBehindCrowd: a plugin that appears while plugins that accept and do not answer have all places is asked next. All others are
// still unanswered when it is registered, because their deadline is an hour away.
func TestNewcomerBehindCrowd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("sockets of other users need root")
	}
	const perUser, total = 6, 8
	for name, crowd := range map[string][]int{
		"of its own user":     {60001},
		"of two other users":  {60002, 60003},
		"of its own and them": {60001, 60002, 60003},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t, plugin.Bounds{UserPlugins: perUser, TotalPlugins: total})
			accepted := make(chan struct{}, 1000)
			for i := range 24 {
				go acceptAll(c.listen(fmt.Sprint("s", i), crowd[i%len(crowd)]), accepted)
			}
			for range min(perUser*len(crowd), total) {
				<-accepted
			}
			for i := range perUser {
				c.registers(fmt.Sprint("new", i), 60001)
			}
		})
	}
}

// crowd is a pipeline on a directory in which several users have sockets.
type crowd struct {
	*testing.T

	outside, plugins string
	events           chan plugin.Event
}

func newCrowd(t *testing.T, bounds plugin.Bounds) *crowd {
	c := &crowd{T: t, outside: t.TempDir(), plugins: t.TempDir(), events: make(chan plugin.Event, 1000)}
	judge, err := trustjudge.New(trust.Policy{Sticky: true, Owners: trust.Accounts{Users: []string{"60001", "60002", "60003"}}})
	if err := errors.Join(err, os.Chmod(c.plugins, os.ModeSticky|0o777)); err != nil {
		t.Fatal(err)
	}
	w := &Watcher{Dirs: []string{c.plugins}, Trust: judge, Registration: reconciler.Config{
		Bounds: bounds, Timeouts: plugin.Timeouts{Dial: time.Minute, GetInfo: time.Hour},
		Observe: func(e plugin.Event) { c.events <- e },
	}}
	w.AddHandler("T", accepting{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return c
}

// listen returns the listener of a socket of a user in the plugin directory.
func (c *crowd) listen(name string, uid int) net.Listener {
	outside := filepath.Join(c.outside, name)
	l, err := net.Listen("unix", outside)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = l.Close() })
	if err := errors.Join(os.Chown(outside, uid, uid), os.Rename(outside, filepath.Join(c.plugins, name))); err != nil {
		c.Fatal(err)
	}
	return l
}

// registers fails the test unless a plugin is registered by its first attempt.
func (c *crowd) registers(name string, uid int) {
	c.Helper()
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, named{name: name})
	served := make(chan error, 1)
	l := c.listen(name, uid)
	go func() { served <- server.Serve(l) }()
	c.Cleanup(func() {
		server.Stop()
		<-served
	})
	for e := range c.events {
		switch {
		case e.SocketPath != filepath.Join(c.plugins, name):
		case e.Kind == plugin.EventRegistered:
			return
		default:
			c.Fatalf("%s is %s: %s", name, e.Kind, e.Message)
		}
	}
}

// acceptAll accepts connections and answers nothing.
func acceptAll(l net.Listener, accepted chan<- struct{}) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		select {
		case accepted <- struct{}{}:
		default:
		}
	}
}

// named is a plugin that says its name.
type named struct {
	registerapi.UnimplementedRegistrationServer
	name string
}

func (n named) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: "T", Name: n.name, SupportedVersions: []string{"1"}}, nil
}

func (named) NotifyRegistrationStatus(
	context.Context, *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

// accepting is a handler that accepts all plugins.
type accepting struct{}

func (accepting) ValidatePlugin(string, string, []string) error { return nil }

func (accepting) RegisterPlugin(string, string, []string, *time.Duration) error { return nil }

func (accepting) DeRegisterPlugin(string) {}
