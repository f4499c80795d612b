package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon"
)

// proxied are the roles of the processes of benchProxy. Each is given a directory, in which its sockets are.
var proxied = map[string]func(ctx context.Context, dir string) error{
	"proxied-plugin": func(ctx context.Context, dir string) error { return serveBytes(ctx, dir, "plugin") },
	"proxied-other":  func(ctx context.Context, dir string) error { return serveBytes(ctx, dir, "other") },
	"proxied-floor": func(ctx context.Context, dir string) error {
		return errors.Join(inParallel(
			func() error { return serveFloor(ctx, dir, "plugin") }, func() error { return serveFloor(ctx, dir, "other") })...)
	},
	"proxied-flood": flood,
	"proxied-daemon": func(ctx context.Context, dir string) error {
		d, err := daemon.New(daemon.Options{Loaded: config.Loaded{Config: config.Config{
			PluginDirs: []string{filepath.Join(dir, "plugins")}, State: filepath.Join(dir, "state.db"),
			ControlSocket: filepath.Join(dir, "control.sock"), DispenseDir: filepath.Join(dir, "d"),
			Handlers: map[string]string{"Bench": daemon.HandlerAccept},
		}}})
		if err != nil {
			return err
		}
		return d.Run(ctx)
	},
}

// inParallel runs functions at the same time and returns their errors.
func inParallel(functions ...func() error) []error {
	errs := make([]error, len(functions))
	var running sync.WaitGroup
	for i, f := range functions {
		running.Go(func() { errs[i] = f() })
	}
	running.Wait()
	return errs
}

// serveBytes is a plugin.
func serveBytes(ctx context.Context, dir, name string) error {
	server := grpc.NewServer(grpc.ForceServerCodec(bytesCodec{}), grpc.UnknownServiceHandler(answerBytes))
	server.RegisterService(registrationDesc(name), nil)
	return serveOn(ctx, filepath.Join(dir, "plugins", name+".sock"), server)
}

// serveFloor is a proxy for a plugin.
func serveFloor(ctx context.Context, dir, name string) error {
	plugin, err := dialBytes(filepath.Join(dir, "plugins", name+".sock"))
	if err != nil {
		return err
	}
	defer plugin.Close()
	return serveOn(ctx, filepath.Join(dir, "floor-"+name+".sock"), grpc.NewServer(grpc.ForceServerCodec(bytesCodec{}),
		grpc.UnknownServiceHandler(func(_ any, caller grpc.ServerStream) error { return relayBytes(caller, plugin) })))
}

// playProxied plays one of the roles until standard input ends.
func playProxied(role func(context.Context, string) error, dir string) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	return role(ctx, dir)
}

func serveOn(ctx context.Context, path string, server *grpc.Server) error {
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve(listener)
}

// bytesCodec has messages of bytes, copied as most codecs do.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) ([]byte, error) {
	if b, ok := v.(*[]byte); ok {
		return *b, nil
	}
	return nil, errors.New("not bytes")
}

func (bytesCodec) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return errors.New("not bytes")
	}
	*b = append((*b)[:0], data...)
	return nil
}

func dialBytes(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{})))
}

// answerBytes answers Echo with what it is sent, and Source with as many messages as there are bytes in the request.
func answerBytes(_ any, s grpc.ServerStream) error {
	var message []byte
	if err := s.RecvMsg(&message); err != nil {
		return err
	}
	if method, _ := grpc.MethodFromServerStream(s); method == "/bench/Echo" {
		return s.SendMsg(&message)
	}
	large := make([]byte, 1<<20)
	for range message {
		if err := s.SendMsg(&large); err != nil {
			return err
		}
	}
	return nil
}

// registrationDesc registers the plugin without generated code, whose codec the server does not have.
func registrationDesc(name string) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "pluginregistration.Registration", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "GetInfo", Handler: bytesMethod(func() ([]byte, error) {
				return proto.Marshal(&registerapi.PluginInfo{Type: "Bench", Name: name, SupportedVersions: []string{"v1"}})
			})},
			{MethodName: "NotifyRegistrationStatus", Handler: bytesMethod(func() ([]byte, error) { return nil, nil })},
		},
	}
}

func bytesMethod(answer func() ([]byte, error)) grpc.MethodHandler {
	return func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var request []byte
		if err := decode(&request); err != nil {
			return nil, err
		}
		response, err := answer()
		return &response, err
	}
}

// relayBytes is the floor: the least that a proxy on grpc-go does.
func relayBytes(caller grpc.ServerStream, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(caller.Context())
	defer cancel()
	method, _ := grpc.MethodFromServerStream(caller)
	plugin, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	go func() {
		var m []byte
		for caller.RecvMsg(&m) == nil {
			if plugin.SendMsg(&m) != nil {
				return
			}
		}
		_ = plugin.CloseSend()
	}()
	var m []byte
	for {
		if err := plugin.RecvMsg(&m); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := caller.SendMsg(&m); err != nil {
			return err
		}
	}
}

// road is one way to the plugin.
type road struct {
	name string
	conn *grpc.ClientConn
}

// benchProxy measures calls to a plugin: on a connection to its own socket ("direct"), through the stable socket of a daemon ("stable"),
// through its control socket ("control"), and through a proxy that is nothing but grpc-go ("floor"). Caller, plugin, daemon and floor are
// processes of their own; the ways take turns.
func benchProxy(b testing.TB) {
	rounds, calls, messages := 10, map[int]int{1: 1000, 64: 8000}, 128
	if small(b) {
		rounds, calls, messages = 1, map[int]int{1: 100, 64: 640}, 8
	}
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Mkdir(filepath.Join(dir, "plugins"), 0o750); err != nil {
		b.Fatal(err)
	}
	stable := filepath.Join(dir, "d", "Bench", "plugin.sock")
	for _, p := range []struct{ role, socket string }{
		{"proxied-plugin", filepath.Join(dir, "plugins", "plugin.sock")}, {"proxied-floor", filepath.Join(dir, "floor-plugin.sock")},
		{"proxied-daemon", stable},
	} {
		defer startProxied(b, p.role, dir, p.socket)()
	}
	var roads []road
	for _, r := range []struct{ name, socket string }{
		{"direct", filepath.Join(dir, "plugins", "plugin.sock")}, {"floor", filepath.Join(dir, "floor-plugin.sock")}, {"stable", stable},
	} {
		conn, err := dialBytes(r.socket)
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		roads = append(roads, road{r.name, conn})
	}
	conn, err := client.New(filepath.Join(dir, "control.sock")).Conn("Bench", "plugin")
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	roads = append(roads, road{"control", conn})

	for _, callers := range []int{1, 64} {
		for round := range 1 + rounds {
			turns(roads, round, func(r road) {
				begin := time.Now()
				if err := echo(r.conn, callers, calls[callers]); err != nil {
					b.Fatalf("%s: %v", r.name, err)
				}
				if round > 0 { // the first warms up
					each := float64(time.Since(begin).Microseconds()) / float64(calls[callers])
					record(b, fmt.Sprintf("Proxy/callers=%d/%s", callers, r.name), calls[callers], metrics{"µs/call", each, "calls/s", 1e6 / each})
				}
			})
		}
	}
	for round := range 1 + rounds {
		turns(roads, round, func(r road) {
			begin := time.Now()
			if err := drainSource(r.conn, messages); err != nil {
				b.Fatalf("%s: %v", r.name, err)
			}
			if round > 0 {
				record(b, "Proxy/stream=1MiB/"+r.name, messages, metrics{"MiB/s", float64(messages) / time.Since(begin).Seconds()})
			}
		})
	}
}

// startProxied starts one of the roles and returns when its socket is there.
func startProxied(b testing.TB, role, dir, socket string) (stop func()) {
	b.Helper()
	cmd := exec.Command(os.Args[0], dir)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Lstat(socket); err == nil {
			break
		}
		if time.Now().After(end) {
			b.Fatalf("%s does not serve %s", role, socket)
		}
	}
	return func() {
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil && !strings.Contains(err.Error(), "killed") {
			b.Error(err)
		}
	}
}

// echo makes calls, shared among callers on one connection.
func echo(conn *grpc.ClientConn, callers, calls int) error {
	var left atomic.Int64
	left.Store(int64(calls))
	errs := make([]error, callers)
	var running sync.WaitGroup
	for i := range callers {
		running.Go(func() {
			request, response := make([]byte, 32), []byte(nil)
			for left.Add(-1) >= 0 && errs[i] == nil {
				errs[i] = conn.Invoke(context.Background(), "/bench/Echo", &request, &response, grpc.ForceCodec(bytesCodec{}))
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// drainSource reads a stream of messages of 1 MiB.
func drainSource(conn *grpc.ClientConn, messages int) error {
	s, err := conn.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true}, "/bench/Source", grpc.ForceCodec(bytesCodec{}))
	if err != nil {
		return err
	}
	request := make([]byte, messages)
	if err := s.SendMsg(&request); err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	var m []byte
	for got := 0; ; got++ {
		switch err := s.RecvMsg(&m); {
		case errors.Is(err, io.EOF) && got == messages:
			return nil
		case err != nil:
			return fmt.Errorf("after %d messages: %w", got, err)
		case len(m) != 1<<20:
			return fmt.Errorf("a message of %d bytes", len(m))
		}
	}
}
