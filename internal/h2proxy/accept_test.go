package h2proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestServerEndsSilentCallers: a caller that does not answer whether it is there, and one that does not say who it is, are cut off.
func TestServerEndsSilentCallers(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*ServerConfig){
		"asked": func(c *ServerConfig) { c.Silence, c.Answer = time.Millisecond, time.Millisecond },
		"stranger": func(c *ServerConfig) {
			c.Introduce = func(context.Context, net.Conn) (Introduced, error) { return Introduced{}, errors.New("who?") }
		},
		"speechless": func(c *ServerConfig) {
			c.Timeout = 10 * time.Millisecond
			c.Introduce = func(ctx context.Context, _ net.Conn) (Introduced, error) {
				<-ctx.Done()
				return Introduced{}, ctx.Err()
			}
		},
	} {
		config := ServerConfig{Timeout: patience, Budget: NewBudget(DefaultLimits, 1, func(uint32, Reason, bool) {})}
		change(&config)
		s := NewServer(config)
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = s.Serve(l) }()
		nc, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		hello := bytes.NewBufferString(http2.ClientPreface)
		framer := http2.NewFramer(hello, nil)
		_, _ = framer.WriteSettings(), framer.WriteSettingsAck()
		_, _ = nc.Write(hello.Bytes()) // perhaps it is closed already
		_ = nc.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, nc); isTimeout(err) {
			t.Errorf("%s: the connection goes on", name)
		}
		_ = nc.Close()
		s.Drain()
	}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
