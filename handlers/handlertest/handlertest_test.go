package handlertest

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/plugin"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// keeper is a correct handler: it asks a plugin for its health and keeps the connection. Its faults make it incorrect.
type keeper struct {
	faults

	mu    sync.Mutex
	conns map[string]map[string]*grpc.ClientConn // by name and endpoint
	ended bool

	current map[string]string // the endpoint by name
	busy    atomic.Bool
}

// firstName is the plugin with which the suite makes sure that a handler works at all.
const firstName = "plugin-0.example.com"

// faults are what a handler can do wrong.
type faults struct {
	acceptsVersions, acceptsNames, validateDials bool
	acceptsFaulty                                bool
	pilesUp, leaksOnDeRegister, deRegisterPanics bool
	dropsUnknown, ignoresGone, goneDropsAll      bool
	leaksOnFailure, keepsOlderOnFailure          bool
	goroutineOnFailure                           bool
	locks, hasHangs, deaf, boundToContext        bool
	leaksOnClose                                 bool
	currentOnly, asksTheDead, oneAtATime         bool
	onceOnly, begun                              *sync.Map // outlive the handler
	dialled                                      *dialled
}

// dialled are all connections that handlers made, so that what a wrong one leaves can be closed.
type dialled struct {
	mu    sync.Mutex
	conns []*grpc.ClientConn
	ended chan struct{}
}

func (d *dialled) dial(path string) (*grpc.ClientConn, error) {
	conn, err := endpoint.Dial(context.Background(), path)
	if err == nil && d != nil {
		d.mu.Lock()
		d.conns = append(d.conns, conn.ClientConn)
		d.mu.Unlock()
	}
	return conn.ClientConn, err
}

func (d *dialled) close() {
	close(d.ended)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, conn := range d.conns {
		_ = conn.Close() // an error says that it is closed
	}
}

func newKeeper(f faults) func(string) (cache.PluginHandler, error) {
	return func(string) (cache.PluginHandler, error) {
		return &keeper{faults: f, conns: map[string]map[string]*grpc.ClientConn{}, current: map[string]string{}}, nil
	}
}

func (k *keeper) ValidatePlugin(name, path string, versions []string) error {
	if !k.acceptsVersions && !slices.Contains(versions, "v1") {
		return errors.New("wrong versions")
	}
	if !k.acceptsNames && name == "" {
		return errors.New("wrong name")
	}
	if k.validateDials && name != firstName {
		conn, err := k.dialled.dial(path)
		if err != nil {
			return err
		}
		conn.Connect()
	}
	return nil
}

func (k *keeper) RegisterPlugin(string, string, []string, *time.Duration) error {
	return errors.New("not called")
}

func (k *keeper) RegisterPluginContext(
	ctx context.Context, name, path string, _ []string, _ *time.Duration,
) (plugin.Registration, error) {
	if k.onceOnly != nil {
		if _, known := k.onceOnly.LoadOrStore(name, true); known {
			return plugin.Registration{}, errors.New("known already")
		}
	}
	if k.begun != nil {
		if _, unfinished := k.begun.LoadOrStore(name, true); unfinished {
			return plugin.Registration{}, errors.New("is being registered")
		}
	}
	if k.oneAtATime {
		if k.busy.Swap(true) {
			return plugin.Registration{}, errors.New("another plugin is being registered")
		}
		defer k.busy.Store(false)
	}
	if k.locks {
		k.mu.Lock()
		defer k.mu.Unlock()
	}
	if k.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	conn, err := k.dialled.dial(path)
	if err != nil {
		return plugin.Registration{}, err
	}
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "plugin"})
	if err == nil && answer.GetStatus() != healthpb.HealthCheckResponse_SERVING && !k.acceptsFaulty {
		err = errors.New("not healthy")
	}
	if !k.locks {
		k.mu.Lock()
		defer k.mu.Unlock()
	}
	if err != nil {
		if !k.leaksOnFailure {
			_ = conn.Close()
		}
		if k.goroutineOnFailure {
			go func() { <-k.dialled.ended }()
		}
		if !k.keepsOlderOnFailure {
			k.drop(name)
		}
		return plugin.Registration{}, err
	}
	if k.boundToContext {
		context.AfterFunc(ctx, func() { _ = conn.Close() })
	}
	if k.conns[name] == nil {
		k.conns[name] = map[string]*grpc.ClientConn{}
	}
	if before := k.conns[name][path]; before != nil && !k.pilesUp {
		_ = before.Close()
	}
	k.conns[name][path] = conn
	k.current[name] = path
	if k.begun != nil {
		k.begun.Delete(name)
	}
	return plugin.Registration{}, nil
}

// drop closes all connections to a plugin.
func (k *keeper) drop(name string) {
	for _, conn := range k.conns[name] {
		_ = conn.Close()
	}
	delete(k.conns, name)
}

func (k *keeper) DeRegisterPlugin(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.deRegisterPanics && k.conns[name] == nil && !k.ended {
		panic("unknown plugin")
	}
	if k.dropsUnknown && k.conns[name] == nil {
		for other := range k.conns {
			k.drop(other)
		}
	}
	if k.leaksOnDeRegister && name != firstName {
		delete(k.conns, name)
		return
	}
	if k.asksTheDead {
		for _, conn := range k.conns[name] {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			for err := errors.New("not asked"); err != nil && ctx.Err() == nil; {
				_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
			}
			cancel()
		}
	}
	if k.currentOnly {
		for path, conn := range k.conns[name] {
			if path == k.current[name] {
				_ = conn.Close()
			}
		}
		delete(k.conns, name)
		return
	}
	k.drop(name)
}

func (k *keeper) InstanceGone(name, path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ignoresGone {
		return
	}
	if k.goneDropsAll && k.conns[name][path] != nil {
		k.drop(name)
		return
	}
	if conn := k.conns[name][path]; conn != nil {
		_ = conn.Close()
		delete(k.conns[name], path)
	}
}

func (k *keeper) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	if !k.leaksOnClose {
		for name := range k.conns {
			k.drop(name)
		}
	}
	return nil
}

func (k *keeper) has(name string) bool {
	if k.hasHangs {
		<-k.dialled.ended
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.conns[name]) > 0
}

// serving is a plugin that says how it is.
type serving struct {
	healthpb.UnimplementedHealthServer
	status healthpb.HealthCheckResponse_ServingStatus
}

func (h serving) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return &healthpb.HealthCheckResponse{Status: h.status}, nil
}

func suite(newHandler func(string) (cache.PluginHandler, error)) Suite {
	return Suite{
		NewHandler: newHandler,
		Versions:   []string{"v2", "v1"},
		Serve: func(s grpc.ServiceRegistrar, _ string) {
			healthpb.RegisterHealthServer(s, serving{status: healthpb.HealthCheckResponse_SERVING})
		},
		WrongVersions: [][]string{nil, {"v3"}},
		WrongNames:    []string{""},
		WrongPlugins: map[string]Services{
			"not serving": func(s grpc.ServiceRegistrar, _ string) {
				healthpb.RegisterHealthServer(s, serving{status: healthpb.HealthCheckResponse_NOT_SERVING})
			},
		},
		HoldsConnection: true,
		Has: func(h cache.PluginHandler, name string) bool {
			k, ok := h.(*keeper)
			return ok && k.has(name)
		},
	}
}

func TestCorrectHandlersPass(t *testing.T) {
	t.Run("Keeper", func(t *testing.T) { suite(newKeeper(faults{})).Test(t) })
	t.Run("WithoutContext", func(t *testing.T) {
		c := suite(func(string) (cache.PluginHandler, error) { return asker{}, nil })
		c.HoldsConnection, c.Has = false, nil
		c.Test(t)
	})
}

// asker is a handler with the three methods only.
type asker struct{}

func (asker) ValidatePlugin(name, path string, versions []string) error {
	return (&keeper{}).ValidatePlugin(name, path, versions)
}

func (asker) RegisterPlugin(_, path string, _ []string, _ *time.Duration) (err error) {
	conn, err := endpoint.Dial(context.Background(), path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err == nil && answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return status.Error(codes.FailedPrecondition, "not healthy")
	}
	return err
}

func (asker) DeRegisterPlugin(string) {}

func TestWrongHandlersFail(t *testing.T) {
	for name, test := range map[string]struct {
		faults faults
		fail   string // one case that must fail
	}{
		"AcceptsVersions":     {faults{acceptsVersions: true}, "Validate"},
		"AcceptsNames":        {faults{acceptsNames: true}, "Validate"},
		"ValidateDials":       {faults{validateDials: true}, "Validate"},
		"PilesUp":             {faults{pilesUp: true}, "Repeated"},
		"LeaksOnDeRegister":   {faults{leaksOnDeRegister: true}, "Repeated"},
		"DeRegisterPanics":    {faults{deRegisterPanics: true}, "Unknown"},
		"DropsUnknown":        {faults{dropsUnknown: true}, "Unknown"},
		"OnceOnly":            {faults{onceOnly: new(sync.Map)}, "Repeated"},
		"IgnoresGone":         {faults{ignoresGone: true}, "Replaced"},
		"GoneDropsAll":        {faults{goneDropsAll: true}, "Replaced"},
		"AcceptsFaulty":       {faults{acceptsFaulty: true}, "FailedRegister"},
		"LeaksOnFailure":      {faults{leaksOnFailure: true}, "FailedRegister"},
		"GoroutineOnFailure":  {faults{goroutineOnFailure: true}, "FailedRegister"},
		"KeepsOlderOnFailure": {faults{keepsOlderOnFailure: true}, "FailedReRegister"},
		"Locks":               {faults{locks: true}, "NoLockOverCall"},
		"HasHangs":            {faults{hasHangs: true}, "NoLockOverCall"},
		"Deaf":                {faults{deaf: true}, "ContextEnds"},
		"BoundToContext":      {faults{boundToContext: true}, "ContextOfThePast"},
		"OnceOnlyEver":        {faults{onceOnly: new(sync.Map)}, "CrashAtRest"},
		"CurrentOnly":         {faults{currentOnly: true}, "Survivor"},
		"AsksTheDead":         {faults{asksTheDead: true}, "PluginDies"},
		"Begun":               {faults{begun: new(sync.Map)}, "CrashInTheMiddle"},
		"OneAtATime":          {faults{oneAtATime: true}, "ConcurrentNames"},
		"LeaksOnClose":        {faults{leaksOnClose: true}, "Closed"},
	} {
		t.Run(name, func(t *testing.T) {
			test.faults.dialled = &dialled{ended: make(chan struct{})}
			defer test.faults.dialled.close()
			c := suite(newKeeper(test.faults))
			c.Patience = 500 * time.Millisecond
			err := c.run(named(t, test.fail))
			if err == nil {
				t.Fatalf("case %s did not notice", test.fail)
			}
			t.Log(err)
		})
	}
}

func named(t *testing.T, name string) testCase {
	t.Helper()
	i := slices.IndexFunc(cases, func(c testCase) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("no case %s", name)
	}
	return cases[i]
}

// unruly is a handler whose RegisterPlugin does what a test says.
type unruly struct{ register func() }

func (unruly) ValidatePlugin(string, string, []string) error { return nil }

func (u unruly) RegisterPlugin(string, string, []string, *time.Duration) error {
	u.register()
	return nil
}

func (unruly) DeRegisterPlugin(string) {}

// TestRefuses checks that Run returns an error for a Suite that cannot work and for functions in it that do not return a handler.
func TestRefuses(t *testing.T) {
	quiet := func(string) (cache.PluginHandler, error) { return unruly{func() {}}, nil }
	v1 := []string{"v1"}
	for want, s := range map[string]Suite{
		"it needs NewHandler,":                             {Versions: v1},
		"NewHandler, Versions,":                            {NewHandler: quiet},
		"Patience that is not":                             {NewHandler: quiet, Versions: v1, Patience: -1},
		"neither a handler nor":                            {Versions: v1, NewHandler: func(string) (cache.PluginHandler, error) { return nil, nil }}, //nolint:nilnil // the case itself
		"cannot create the handler: oops":                  {Versions: v1, NewHandler: func(string) (cache.PluginHandler, error) { return nil, errors.New("oops") }},
		"it panicked: oh":                                  {Versions: v1, NewHandler: func(string) (cache.PluginHandler, error) { panic("oh") }},
		"it ended its goroutine":                           {Versions: v1, NewHandler: func(string) (cache.PluginHandler, error) { runtime.Goexit(); return nil, nil }}, //nolint:nilnil // the case itself
		"it panicked: services":                            {Versions: v1, NewHandler: quiet, Serve: func(grpc.ServiceRegistrar, string) { panic("services") }},
		"it panicked: name":                                {Versions: v1, NewHandler: quiet, Name: func(int) string { panic("name") }},
		"RegisterPlugin(n) did not return: it panicked: h": {Versions: v1, NewHandler: handlerThat(func() { panic("h") }), Name: func(int) string { return "n" }},
		"RegisterPlugin(m) did not return: it ended":       {Versions: v1, NewHandler: handlerThat(runtime.Goexit), Name: func(int) string { return "m" }},
	} {
		// One case suffices: each begins with a handler and a plugin.
		all := cases
		cases = slices.Clone(cases[:1])
		ended := make(chan error, 1)
		go func() {
			defer close(ended)
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("%s: Run panicked: %v", want, r)
				}
			}()
			ended <- s.Run()
		}()
		if err := <-ended; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %s", err, want)
		}
		cases = all
	}
}

func handlerThat(register func()) func(string) (cache.PluginHandler, error) {
	return func(string) (cache.PluginHandler, error) { return unruly{register}, nil }
}
