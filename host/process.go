package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	defaults "github.com/patchbay-dev/patchbay/internal/launch"
	"github.com/patchbay-dev/patchbay/internal/launch/cipd"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/launch/pluginlog"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// patience is how long the host waits, after a plugin has ended, until its connections and its output are closed.
	patience = 50 * time.Millisecond
	// logPatience is how long the host waits, after a plugin has ended, until a slow logger has handled its records.
	logPatience = time.Second
)

// PluginProcess is a plugin subprocess. All methods are safe for concurrent use.
type PluginProcess struct {
	host     *Host
	spec     Spec // normalized; only the saved fields for an adopted plugin
	ticket   ticket
	services grants  // granted services; nil for an adopted plugin
	server   *server // the server that the plugin may call; nil for a foreign plugin and for an adopted one
	logs     *pluginlog.Log
	ownLogs  bool // the host closes logs with the plugin

	user      *process.User // user of the process; nil for that of this process, and for an adopted plugin
	mayBeCIPD bool          // result of Host.mayBeCIPD

	started      chan struct{}           // closed when the next fields are set
	proc         *process.Process        // nil if the process could not be started
	pin          plugin.Pin              // zero if the program was not checked
	introduction *handshake.Introduction // may be nil
	made         *sock.Made              // the inherited socket; may be nil
	introduced   atomic.Bool             // the plugin has written its introduction, before it took the inherited socket

	calls calls

	began    time.Time
	left     chan struct{} // closed when the host does not wait for the process any more, and leaves it running
	leftOnce sync.Once
	done     chan struct{} // closed when err is set
	err      error
}

// newPlugin returns a plugin that is not started yet. Its log is that in ctx, or a new one that forwards records to the logger in ctx or in
// the host's PluginsContext.
func newPlugin(ctx context.Context, h *Host, spec Spec) *PluginProcess {
	p := &PluginProcess{
		host: h, spec: spec, logs: pluginlog.FromContext(ctx), began: time.Now(),
		started: make(chan struct{}), left: make(chan struct{}), done: make(chan struct{}),
	}
	if p.logs == nil {
		p.ownLogs = true
		p.logs = pluginlog.New(spec.Name, handlerOf(ctx, h.PluginsContext), 0)
	}
	return p
}

func (p *PluginProcess) grant(granted grants) {
	p.services = maps.Clone(granted)
	own := &hostService{config: p.host.Config(), logs: p.logs}
	if p.spec.Protocol == ProtocolCIPD {
		p.services[cipd.HostDesc.ServiceName] = service{&cipd.HostDesc, cipd.NewHost(own, own.config.ServiceURL)}
		return
	}
	p.services[pluginv1.Host_ServiceDesc.ServiceName] = service{&pluginv1.Host_ServiceDesc, own}
}

// Started returns a channel that is closed when the process has been started, or could not be started. PID and Owns are valid from then on.
func (p *PluginProcess) Started() <-chan struct{} { return p.started }

// Name returns the name with which the plugin was launched.
func (p *PluginProcess) Name() string { return p.spec.Name }

// PID returns the process ID. It may belong to another process after the plugin has ended.
func (p *PluginProcess) PID() int {
	if p.proc == nil {
		return 0
	}
	return p.proc.PID()
}

// Owns reports whether a process is the plugin's process or descends from it.
func (p *PluginProcess) Owns(pid int) bool { return p.proc != nil && p.proc.Owns(pid) }

// RegisteredFor returns the user and group of a plugin of a foreign protocol, whose registration this process serves. It reports false for
// a plugin that serves its registration itself, and for one that runs as the user and group of this process.
func (p *PluginProcess) RegisteredFor() (uid, gid uint32, ok bool) {
	if p.spec.Adapter == nil || p.user == nil {
		return 0, 0, false
	}
	return p.user.UID, p.user.GID, true
}

// Health returns [ProtocolAdapter].Health; nil for a plugin that serves health checks at its socket.
func (p *PluginProcess) Health() (conn grpc.ClientConnInterface, service string) {
	if p.spec.Adapter == nil {
		return nil, ""
	}
	return p.spec.Adapter.Health()
}

// Introduction returns, only once, the encoded answer to GetInfo that a plugin of the SDK sends before it serves. It is nil if the plugin
// has not sent one, for example because it creates its own socket; then the caller has to call GetInfo. Introduction does not block. The
// host holds a descriptor until Introduction or [PluginProcess.MarkRegistered] is called, or the plugin has ended.
func (p *PluginProcess) Introduction() []byte {
	if !isClosed(p.started) {
		return nil
	}
	said := p.introduction.Take()
	if said != nil {
		p.introduced.Store(true)
	}
	return said
}

// PluginSocket returns the path at which the plugin should serve; empty if the plugin does not serve.
func (p *PluginProcess) PluginSocket() string { return p.spec.PluginSocket }

// Tag returns the [Spec].Tag with which the plugin was launched, possibly by an earlier host.
func (p *PluginProcess) Tag() string { return p.spec.Tag }

// Pin identifies the program, if it was launched with [Spec].SHA256 or [Spec].Admit. It is zero otherwise, and for an adopted plugin.
func (p *PluginProcess) Pin() plugin.Pin { return p.pin }

// Logs returns the newest output and log records of the plugin.
func (p *PluginProcess) Logs() plugin.Log { return p.logs }

// Done returns a channel that is closed when the plugin and its descendants have ended, and all their output is in the log. It stays open
// if the plugin survives [Host.Close].
func (p *PluginProcess) Done() <-chan struct{} { return p.done }

// Err returns nil until Done is closed. After that it returns [ErrTerminated] if the plugin exited with status 0, and otherwise an error
// that unwraps to [exec.ExitError], or to a similar error for an adopted plugin.
func (p *PluginProcess) Err() error {
	if p.ended() {
		return p.err
	}
	return nil
}

func (p *PluginProcess) ended() bool { return isClosed(p.done) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Terminate stops the plugin and all its descendants: it closes the plugin's standard input, sends SIGTERM, and finally SIGKILL, after
// [Spec].StopTimeout or when ctx is done. It blocks until they have exited and returns the result of Err, or an error if they have not
// exited after SIGKILL. It does nothing if the plugin has exited.
func (p *PluginProcess) Terminate(ctx context.Context) error {
	err := p.terminate(ctx)
	if errors.Is(err, process.ErrTimeout) {
		return err
	}
	select {
	case <-p.done:
	case <-p.left:
	}
	return p.Err()
}

// grace divides the time for stopping a plugin: SIGTERM is sent halfway, or near the end for a foreign plugin, which the adapter asks to
// stop first.
func (s *Spec) grace(ctx context.Context) process.Grace {
	whole := cmp.Or(s.StopTimeout, defaults.DefaultStopTimeout)
	if deadline, ok := ctx.Deadline(); ok {
		whole = min(whole, max(time.Until(deadline), 1))
	}
	term := whole / 2
	if s.Adapter != nil {
		term = whole / 10
	}
	return process.Grace{Stdin: whole - term, Term: cmp.Or(term, 1)}
}

// terminate stops the process. The adapter of a foreign plugin asks it to stop.
func (p *PluginProcess) terminate(ctx context.Context) error {
	grace := p.spec.grace(ctx)
	if p.spec.Adapter == nil {
		return p.proc.Terminate(ctx, grace)
	}
	asking, cancel := context.WithCancel(ctx)
	var asked sync.WaitGroup
	asked.Go(func() { p.spec.Adapter.Stop(asking) })
	err := p.proc.Terminate(ctx, grace)
	cancel()
	asked.Wait()
	return err
}

// leave stops the plugin for Host.Close, unless it survives.
func (p *PluginProcess) leave(ctx context.Context) {
	if !p.spec.Survive {
		if err := p.Terminate(ctx); !errors.Is(err, process.ErrTimeout) {
			return
		}
		p.host.warn("a plugin cannot be ended", "plugin", p.spec.Name, "pid", p.PID())
	}
	p.abandon()
}

func (p *PluginProcess) abandon() { p.leftOnce.Do(func() { close(p.left) }) }

func (p *PluginProcess) watch() {
	defer p.host.forget(p) // after Ended: PluginAt must find the plugin until the adapter has closed its registration
	if p.spec.Adapter != nil {
		defer p.spec.Adapter.Ended()
	}
	drain := p.readOutput()
	ended := false
	select {
	case <-p.proc.Done():
		ended = true
	case <-p.left:
	}
	p.introduction.Take() // closes it
	p.server.remove(p)
	p.calls.finish(patience)
	drain()
	if p.spec.Adapter == nil {
		p.host.forget(p)
	}
	if ended {
		p.end()
		close(p.done)
	}
	if !p.ownLogs {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), logPatience)
	defer cancel()
	if err := p.logs.Close(ctx); err != nil {
		p.host.warn("the logger is too slow for the last records of a plugin", "plugin", p.spec.Name, "error", err)
	}
}

// end sets err and emits the event of the exit.
func (p *PluginProcess) end() {
	p.err = p.proc.Err()
	described := ErrTerminated
	if p.err == nil {
		p.err = ErrTerminated
	} else {
		if p.mayBeCIPD && !p.calls.hasConnected() {
			p.err = fmt.Errorf("%w, before it called its host; %s", p.err, needsCIPD)
		}
		described = pluginlog.WithLastWords(p.err, p.logs, p.began)
	}
	terminated := p.event(plugin.EventTerminated, described.Error())
	terminated.Err = p.err
	p.host.emit(terminated)
}

func (p *PluginProcess) event(kind plugin.EventKind, message string) Event {
	return Event{PID: p.PID(), Event: plugin.Event{
		Time: time.Now(), Kind: kind, Name: p.spec.Name, SocketPath: p.spec.PluginSocket, Message: message,
	}}
}

// readOutput starts copying the output of the plugin into its log. The returned function waits until the output has ended, or for patience
// if another process holds the other end.
func (p *PluginProcess) readOutput() (drain func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var stderr sync.WaitGroup
		stderr.Go(func() { p.read(p.proc.Stderr(), pluginlog.Stderr) })
		p.read(p.proc.Stdout(), pluginlog.Stdout)
		stderr.Wait()
	}()
	return func() {
		for _, pipe := range []*os.File{p.proc.Stdout(), p.proc.Stderr()} {
			if !isClosed(ended) {
				_ = pipe.SetReadDeadline(time.Now().Add(patience))
			}
			defer pipe.Close()
		}
		<-ended
	}
}

// read copies one output of the plugin into its log, until it ends.
func (p *PluginProcess) read(pipe *os.File, source string) {
	var from io.Reader = pipe
	if foreign := p.spec.Adapter; foreign != nil && source == pluginlog.Stdout {
		foreign.Hello(pipe)
	} else if foreign != nil {
		from = foreign.Stderr(pipe)
	}
	if err := p.logs.Drain(from, source); err != nil {
		p.host.warn("cannot read what a plugin prints", "plugin", p.spec.Name, "error", err)
	}
}

const (
	// maxAttributes is how many attributes of a log record are kept.
	maxAttributes = 64
	// maxPage and maxKeys limit one request for metadata.
	maxPage = 1000
	maxKeys = 100
)

type hostService struct {
	pluginv1.UnimplementedHostServer
	config plugin.Config
	logs   *pluginlog.Log
}

func (s *hostService) Log(stream pluginv1.Host_LogServer) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&pluginv1.LogResponse{})
		}
		if err != nil {
			return err
		}
		for _, r := range request.GetRecords() {
			s.logs.Add(logRecord(r))
		}
	}
}

// logRecord converts a record. The log limits its length and escapes characters.
func logRecord(r *pluginv1.LogRecord) plugin.LogRecord {
	record := plugin.LogRecord{Level: slog.Level(r.GetLevel()), Message: r.GetMessage(), Source: pluginlog.RPC}
	if r.GetTime().IsValid() {
		record.Time = r.GetTime().AsTime()
	}
	attributes := r.GetAttributes()
	for _, a := range attributes[:min(len(attributes), maxAttributes)] {
		record.Attrs = append(record.Attrs, slog.Attr{Key: a.GetKey(), Value: logValue(a)})
	}
	return record
}

func logValue(a *pluginv1.Attribute) slog.Value {
	switch v := a.GetValue().(type) {
	case *pluginv1.Attribute_Text:
		return slog.StringValue(v.Text)
	case *pluginv1.Attribute_Integer:
		return slog.Int64Value(v.Integer)
	case *pluginv1.Attribute_Number:
		return slog.Float64Value(v.Number)
	case *pluginv1.Attribute_Truth:
		return slog.BoolValue(v.Truth)
	default:
		return slog.Value{}
	}
}

func (s *hostService) ListMetadata(
	ctx context.Context, r *pluginv1.ListMetadataRequest,
) (*pluginv1.ListMetadataResponse, error) {
	pin := plugin.Pin{PackageName: r.GetPin().GetPackageName(), InstanceID: r.GetPin().GetInstanceId()}
	switch {
	case r.GetServiceUrl() != "" && r.GetServiceUrl() != s.config.ServiceURL:
		return nil, status.Error(codes.PermissionDenied, "only the metadata of the package service that the host works with can be listed")
	case pin.PackageName == "" || pin.InstanceID == "":
		return nil, status.Error(codes.InvalidArgument, "the pin has no package name or no instance ID")
	case r.GetPageSize() < 0:
		return nil, status.Error(codes.InvalidArgument, "the page size is negative")
	case len(r.GetKeys()) > maxKeys:
		return nil, status.Errorf(codes.InvalidArgument, "more than %d keys", maxKeys)
	case s.config.Repository == nil:
		return nil, status.Error(codes.FailedPrecondition, "this host has no metadata of packages")
	}
	page := plugin.Page{Size: min(int(r.GetPageSize()), maxPage), Token: r.GetPageToken()}
	entries, next, err := s.config.Repository.ListMetadata(ctx, pin, r.GetKeys(), page)
	if err != nil {
		return nil, metadataError(err)
	}
	response := &pluginv1.ListMetadataResponse{NextPageToken: next}
	for _, m := range entries {
		entry := &pluginv1.Metadata{
			Key: m.Key, Value: m.Value, ContentType: m.ContentType, Fingerprint: m.Fingerprint, AttachedBy: m.AttachedBy,
		}
		if !m.AttachedAt.IsZero() {
			entry.AttachedTime = timestamppb.New(m.AttachedAt)
		}
		response.Metadata = append(response.Metadata, entry)
	}
	return response, nil
}

// metadataError keeps the gRPC status of the repository's error, such as InvalidArgument for a bad page token.
func metadataError(err error) error {
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return status.Errorf(codes.Internal, "list metadata: %v", err)
}

// Controller grants a plugin services of the host, in addition to patchbay.plugin.v1.Host, or cipd.plugin.Host for [ProtocolCIPD], which
// are granted to every plugin. Their methods are called concurrently. They must return when the context of the call is done, which is
// cancelled when the plugin has ended.
type Controller struct {
	// Admissions is set for admission plugins.
	Admissions pluginv1.AdmissionsServer
	// Services registers further gRPC services for this plugin. It is called once for each launch, before the process starts.
	Services func(grpc.ServiceRegistrar)
}

// services returns the services that the controller grants to a plugin with a protocol. A nil controller grants none.
func (c *Controller) services(protocol Protocol) (grants, error) {
	g := registrar{services: grants{}}
	switch {
	case c == nil || c.Admissions == nil:
	case protocol == ProtocolCIPD:
		g.RegisterService(&cipd.AdmissionsDesc, cipd.NewAdmissions(c.Admissions))
	default:
		g.RegisterService(&pluginv1.Admissions_ServiceDesc, c.Admissions)
	}
	if c != nil && c.Services != nil {
		c.Services(&g)
	}
	return g.services, g.err
}

// grants has the services that a plugin may call, by their full names.
type grants map[string]service

type service struct {
	desc *grpc.ServiceDesc
	impl any
}

type registrar struct {
	services grants
	err      error // the first
}

// RegisterService implements [grpc.ServiceRegistrar]. The launch fails with the first error.
func (r *registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	_, twice := r.services[desc.ServiceName]
	wanted := reflect.TypeOf(desc.HandlerType)
	switch {
	case r.err != nil:
	case twice || desc.ServiceName == pluginv1.Host_ServiceDesc.ServiceName || desc.ServiceName == cipd.HostDesc.ServiceName:
		r.err = fmt.Errorf("the controller grants the service %s twice", desc.ServiceName)
	case impl == nil || wanted != nil && !reflect.TypeOf(impl).Implements(wanted.Elem()):
		r.err = fmt.Errorf("the controller grants the service %s with a %T, which does not implement it", desc.ServiceName, impl)
	default:
		r.services[desc.ServiceName] = service{desc, impl}
	}
}
