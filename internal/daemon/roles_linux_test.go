package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/usertest"
)

const patience = 2 * time.Minute

// The users of the tests.
const reader, operator, administrator, stranger = 2001, 2002, 2003, 2004

// testRoles are the roles of the users of the tests.
func testRoles() config.Roles {
	return config.Roles{
		Read: config.Members{Users: []string{"2001"}}, Operate: config.Members{Users: []string{"2002"}}, Admin: config.Members{Users: []string{"2003"}},
	}
}

// lab is a daemon to whose control socket everybody can connect.
type lab struct {
	t      *testing.T
	config Options
	log    lockedBuffer
	mu     sync.Mutex
	next   config.Loaded // what a reload gives
}

type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) lines() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Split(b.text.String(), "\n")
}

func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to connect as other users")
	}
	dir, err := os.MkdirTemp("", "pb")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l := &lab{t: t}
	l.config = Options{
		Loaded: config.Loaded{Config: config.Config{
			PluginDirs: []string{filepath.Join(dir, "plugins")}, State: filepath.Join(dir, "state.db"),
			ControlSocket: filepath.Join(dir, "control.sock"), Control: config.Control{Roles: testRoles()},
			Handlers: map[string]string{"ExamplePlugin": HandlerAccept},
		}},
		Logger: slog.New(slog.NewTextHandler(&l.log, nil)),
		Load: func() (*config.Loaded, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			next := l.next
			return &next, nil
		},
	}
	l.next = l.config.Loaded
	d, err := New(l.config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-d.Ready():
	case <-time.After(patience):
		t.Fatal("the daemon does not become ready")
	}
	if err := os.Chmod(l.config.ControlSocket, 0o666); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *lab) ctx() context.Context {
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	l.t.Cleanup(cancel)
	return ctx
}

// as connects as a user.
func (l *lab) as(uid uint32) *grpc.ClientConn {
	l.t.Helper()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			return usertest.Dial(l.t, l.config.ControlSocket, uid, 9), nil
		}))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { conn.Close() })
	return conn
}

// call calls a method, with the name of nothing where it wants one, and returns how it ended.
func (l *lab) call(conn *grpc.ClientConn, procedure string) error {
	l.t.Helper()
	method := procedures()[procedure]
	request := dynamicpb.NewMessage(method.Input())
	for _, field := range []protoreflect.Name{"name", "resource"} {
		if f := method.Input().Fields().ByName(field); f != nil {
			request.Set(f, protoreflect.ValueOfString("nothing"))
		}
	}
	stream, err := conn.NewStream(l.ctx(), &grpc.StreamDesc{ServerStreams: true}, procedure)
	if err == nil {
		err = stream.SendMsg(proto.Message(request))
	}
	if err == nil {
		err = stream.CloseSend()
	}
	for err == nil {
		if err = stream.RecvMsg(dynamicpb.NewMessage(method.Output())); errors.Is(err, io.EOF) {
			return nil
		}
	}
	return err
}

// audited returns the audit events.
func (l *lab) audited() []string {
	l.t.Helper()
	stream, err := patchbayEvents(l.ctx(), l.as(0))
	if err != nil {
		l.t.Fatal(err)
	}
	var events []string
	for {
		response := &patchbayv1.WatchEventsResponse{}
		if err := stream.RecvMsg(response); err != nil {
			if !errors.Is(err, io.EOF) {
				l.t.Fatal(err)
			}
			return events
		}
		if e := response.GetEvent(); e.GetKind() == "audit" {
			events = append(events, e.GetMessage())
		}
	}
}

func patchbayEvents(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/patchbay.v1.ControlService/WatchEvents")
	if err == nil {
		err = stream.SendMsg(&patchbayv1.WatchEventsRequest{})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	return stream, err
}

// TestRolesOfAllMethods calls each method with each role.
func TestRolesOfAllMethods(t *testing.T) {
	l := newLab(t)
	for uid, has := range map[uint32]access.Role{stranger: access.None, reader: access.Read, operator: access.Operate, administrator: access.Admin, 0: access.Admin} {
		conn := l.as(uid)
		for procedure := range procedures() {
			needed := access.RoleFor(procedure)
			err := l.call(conn, procedure)
			denied := status.Code(err) == codes.PermissionDenied
			if denied != (has < needed) {
				t.Errorf("role %s calls %s, which needs %s: %v", has, procedure, needed, err)
			}
			if denied && (!strings.Contains(err.Error(), fmt.Sprintf("user %d has ", uid)) ||
				!strings.Contains(err.Error(), "control.roles."+needed.String())) {
				t.Errorf("role %s calls %s: %v does not say who may", has, procedure, err)
			}
		}
		err := conn.Invoke(l.ctx(), "/x/y", &patchbayv1.GetVersionRequest{}, &patchbayv1.GetVersionResponse{})
		if denied := status.Code(err) == codes.PermissionDenied; denied != (has < access.CallRole) {
			t.Errorf("role %s calls a plugin: %v", has, err)
		}
	}
}

// TestAuditOfAllMethods sees one record of each action for which it does not suffice to read, in the events and in the log.
func TestAuditOfAllMethods(t *testing.T) {
	l := newLab(t)
	conn := l.as(administrator)
	for _, procedure := range privileged() {
		before := len(l.audited())
		result := "ok"
		if err := l.call(conn, procedure); err != nil {
			result = connect.Code(status.Code(err)).String()
		}
		records := l.audited()[before:]
		want := fmt.Sprintf("user %d, group 9, process %d: %s", administrator, os.Getpid(), path.Base(procedure))
		if len(records) != 1 || !strings.HasPrefix(records[0], want) || !strings.Contains(records[0], ": "+result) {
			t.Errorf("%s: records %q, want one with %q and the result %s", procedure, records, want, result)
		}
		if !slices.ContainsFunc(l.log.lines(), func(line string) bool {
			return strings.Contains(line, "msg=audit") && strings.Contains(line, fmt.Sprintf("audit.uid=%d", administrator)) &&
				strings.Contains(line, "audit.action="+path.Base(procedure)) && strings.Contains(line, "audit.result="+result)
		}) {
			t.Errorf("%s is not in the log: %q", procedure, l.log.lines())
		}
	}
	if len(privileged()) < 6 {
		t.Errorf("%d methods need more than to read", len(privileged()))
	}
	before := len(l.audited())
	for procedure := range procedures() {
		if access.RoleFor(procedure) == access.Read {
			_ = l.call(conn, procedure)
		}
	}
	if records := l.audited()[before:]; len(records) > 0 {
		t.Errorf("to read is audited: %q", records)
	}
}

// TestFloodOfDenials has somebody try what he may not, over and over.
func TestFloodOfDenials(t *testing.T) {
	l := newLab(t)
	var conn *grpc.ClientConn
	const tries, each = 500, 50
	for i := range tries {
		if i%each == 0 { // a stranger has a connection for a few seconds only, and ten of them at once
			conn = l.as(stranger)
		}
		for _, procedure := range []string{"/patchbay.v1.ControlService/Reload", "/patchbay.v1.ControlService/GetVersion"} {
			if err := l.call(conn, procedure); status.Code(err) != codes.PermissionDenied {
				t.Fatal(err)
			}
		}
	}
	records := l.audited()
	if len(records) != 2 || !strings.Contains(records[0], ": Reload: denied: user 2004 has no role") {
		t.Errorf("%d records: %q", len(records), records)
	}
	if err := l.call(l.as(stranger), "/patchbay.v1.ControlService/StopPlugin"); status.Code(err) != codes.PermissionDenied {
		t.Fatal(err)
	}
	if records := l.audited(); len(records) != 3 || !strings.Contains(records[2], fmt.Sprintf("%d were left out before it", 2*tries-2)) {
		t.Errorf("%q", records)
	}
}

// TestRolesAreReloaded takes a role away from somebody whose calls are in progress.
func TestRolesAreReloaded(t *testing.T) {
	l := newLab(t)
	conn := l.as(operator)
	watch, err := conn.NewStream(l.ctx(), &grpc.StreamDesc{ServerStreams: true}, "/patchbay.v1.ControlService/WatchEvents")
	if err == nil {
		err = watch.SendMsg(&patchbayv1.WatchEventsRequest{Follow: true, Tail: new(uint32)})
	}
	if err == nil {
		err = watch.RecvMsg(&patchbayv1.WatchEventsResponse{})
	}
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	l.next.Control.Roles = config.Roles{Read: config.Members{Users: []string{fmt.Sprint(operator)}}}
	l.mu.Unlock()
	if err := l.call(l.as(administrator), "/patchbay.v1.ControlService/Reload"); err != nil {
		t.Fatal(err)
	}
	if err := l.call(conn, "/patchbay.v1.ControlService/StopPlugin"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a call after the role was lost: %v", err)
	}
	if err := l.call(l.as(administrator), "/patchbay.v1.ControlService/Reload"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a call of a former administrator: %v", err)
	}
	l.mu.Lock()
	l.next.Control.Roles.Read.Users = []string{fmt.Sprint(reader)}
	l.mu.Unlock()
	if err := l.call(l.as(0), "/patchbay.v1.ControlService/Reload"); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; { // what happened before
		err = watch.RecvMsg(&patchbayv1.WatchEventsResponse{})
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a watch in progress: %v", err)
	}

	// Whom nobody knows changes nothing.
	l.mu.Lock()
	l.next.Control.Roles.Admin.Users = []string{"no-such-user"}
	l.mu.Unlock()
	if err := l.call(l.as(0), "/patchbay.v1.ControlService/Reload"); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), `"no-such-user" is not known on this machine`) {
		t.Errorf("an unknown user: %v", err)
	}
	if err := l.call(l.as(reader), "/patchbay.v1.ControlService/GetVersion"); err != nil {
		t.Errorf("the roles before do not hold any more: %v", err)
	}
}

// privileged are the methods that need more than the role read.
func privileged() []string {
	var found []string
	for procedure := range procedures() {
		if access.RoleFor(procedure) > access.Read {
			found = append(found, procedure)
		}
	}
	slices.Sort(found)
	return found
}

// procedures are the methods of the control API.
func procedures() map[string]protoreflect.MethodDescriptor {
	found := map[string]protoreflect.MethodDescriptor{}
	protoregistry.GlobalFiles.RangeFilesByPackage(patchbayv1.File_patchbay_v1_control_proto.Package(), func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				found["/"+string(service.FullName())+"/"+string(method.Name())] = method
			}
		}
		return true
	})
	return found
}
