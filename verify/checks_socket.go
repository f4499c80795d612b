package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/trust"
)

const (
	// The default limits of hosts for what a plugin announces, in bytes, except maxVersions.
	maxText     = 4096
	maxVersions = 64
	maxVersion  = 64
	// kubeletPatience is the kubelet's timeout for GetInfo, which cannot be configured.
	kubeletPatience = time.Second
	// settle is how long to wait for an exit that a call may cause.
	settle = 500 * time.Millisecond
)

var (
	csiVersion  = regexp.MustCompile(`^v?\d+(\.\d+)+$`)
	csiVersion1 = regexp.MustCompile(`^v?1(\.\d+)+$`)
)

func checkAlone(ctx context.Context, s *subject) outcome {
	dir, plugin := filepath.Dir(s.path), 0
	if s.runner != nil {
		dir = s.runner.Dir // in which no plugin runs yet
	} else if peer, err := sock.Probe(ctx, s.path); err == nil {
		plugin = peer.PID
	}
	watchers, err := process.Watchers(ctx, dir)
	var others []string
	for _, pid := range watchers {
		if plugin != 0 && plugin != os.Getpid() && (pid == plugin || process.Descends(pid, plugin)) {
			continue // the plugin's own; the child processes of a plugin that this process serves itself may be other hosts
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // it may have exited
		others = append(others, fmt.Sprintf("%s (process %d)", strings.TrimSpace(string(name)), pid))
	}
	assume(!errors.Is(err, errors.ErrUnsupported), "this system does not say who watches a directory")
	assume(err == nil, "cannot find out who watches %s: %v", dir, err)
	expect(len(others) == 0, "%s is watched by %s", dir, strings.Join(others, ", "))
	return pass("no process that can be seen from here watches %s", dir)
}

func checkPlace(ctx context.Context, s *subject) outcome {
	info, err := sock.Stat(s.path)
	found := info.Mode.String()
	if err != nil {
		found = err.Error()
	}
	s.trace.add("stat "+s.path, found)
	if err != nil {
		s.lose("there is no socket at " + s.path)
		return fail("%s; is the plugin running?", s.lost)
	}
	require(info.Mode.Type()&os.ModeSymlink == 0, "%s is a symbolic link, which hosts do not follow", s.path)
	if !info.IsSocket() {
		s.lose(s.path + " is not a socket")
		return fail("%s", s.lost)
	}
	require(!strings.HasPrefix(filepath.Base(s.path), "."), "the name %s begins with a dot, so hosts ignore it", filepath.Base(s.path))
	require(len(s.path) <= sock.MaxPath,
		"the path has %d bytes; hosts that connect by path reach none of more than %d", len(s.path), sock.MaxPath)
	if _, err := sock.Probe(ctx, s.path); err != nil {
		s.trace.add("connect "+s.path, err.Error())
		s.lose("nobody can be reached on " + s.path)
		return fail("the socket exists, but connecting to it fails: %v", err)
	}
	return pass("%s is a socket on which a process accepts", s.path)
}

// lose records why the plugin cannot be called any more. After that the checks that need the plugin fail or do not apply.
func (s *subject) lose(why string) { s.lost, s.reported = why, true }

// socketInfo returns the file information of the socket.
func (s *subject) socketInfo() sock.Info {
	info, err := sock.Stat(s.path)
	s.requirePlugin(err == nil, "there is no socket to look at: %v", err)
	return info
}

func checkMode(_ context.Context, s *subject) outcome {
	mode := s.socketInfo().Mode.Perm()
	s.trace.add("stat "+s.path, fmt.Sprintf("mode %04o", mode))
	if mode&0o002 == 0 {
		return pass("the mode is %04o", mode)
	}
	expect(!s.inOwnDirectory(), "the mode is %04o: everyone may connect, unless the plugin directory of the host keeps strangers out", mode)
	if dir, err := sock.Stat(filepath.Dir(s.path)); err == nil && dir.Mode.Perm()&0o001 == 0 {
		return pass("the mode is %04o, in a directory of mode %04o into which strangers do not get", mode, dir.Mode.Perm())
	}
	return fail("the mode is %04o: everyone on the machine may connect", mode)
}

func checkOwner(_ context.Context, s *subject) outcome {
	info := s.socketInfo()
	s.trace.add("stat "+s.path, fmt.Sprintf("owner %d", info.UID))
	require(trustjudge.Default().Socket(s.path, info.UID, info.GID) == nil,
		"the owner is user %d, neither root nor user %d of this verification", info.UID, os.Geteuid())
	return pass("the owner is user %d", info.UID)
}

// inOwnDirectory reports whether the socket is in a temporary directory of the verification, not in a host's plugin directory.
func (s *subject) inOwnDirectory() bool {
	return s.runner != nil && strings.HasPrefix(s.path, s.runner.Base+string(filepath.Separator))
}

func checkDirectory(_ context.Context, s *subject) outcome {
	dir := filepath.Dir(s.path)
	assume(!s.inOwnDirectory(), "the plugin directory was made for the verification")
	var info sock.Info
	target, err := filepath.EvalSymlinks(dir)
	if err == nil {
		info, err = sock.Stat(target)
	}
	s.requirePlugin(err == nil, "cannot look at %s: %v", dir, err)
	s.trace.add("stat "+dir, fmt.Sprintf("mode %04o", info.Mode.Perm()))
	// The owner is not checked: the host chooses the directory.
	if refusal, refused := errors.AsType[*trust.Refusal](trustjudge.Default().Directory(dir, info.Mode, 0, info.GID)); refused {
		return fail("%s", refusal.Problem)
	}
	return pass("the mode of %s is %04o", dir, info.Mode.Perm())
}

func checkGetInfo(ctx context.Context, s *subject) outcome {
	s.asked = nil // ask now, so that the call is in the trace
	waited := s.waiting()
	a := s.ask(ctx)
	if a.err != nil {
		s.reported = true
		o := fail("GetInfo %s", brief(a.err))
		if status.Code(a.err) != codes.Unimplemented {
			return o
		}
		if what := s.recognise(ctx, s.path); what != "" {
			o.reason += "; this is the endpoint of " + what + ", which somebody else registers"
			o.remedy = instead
		}
		return o
	}
	expect(a.after-waited() <= kubeletPatience, "GetInfo took %v; the kubelet waits %v", a.after.Round(time.Millisecond), kubeletPatience)
	return pass("type %s, name %s", untrusted.Quote(a.info.Type), untrusted.Quote(a.info.Name))
}

func (s *subject) tellAnnounced(what string) {
	s.trace.add("pluginregistration.Registration/GetInfo {}", what)
}

func checkType(ctx context.Context, s *subject) outcome {
	info := s.asked.info
	s.tellAnnounced("type " + untrusted.Quote(info.Type))
	requireValid(untrusted.Name("the type", info.Type, maxText))
	require(untrusted.IsType(info.Type), "the type %s has a slash", untrusted.Quote(info.Type))
	return pass("the type is %s", untrusted.Quote(info.Type))
}

func checkName(ctx context.Context, s *subject) outcome {
	info := s.asked.info
	s.tellAnnounced("name " + untrusted.Quote(info.Name))
	requireValid(untrusted.Name("the name", info.Name, maxText))
	requireValid(untrusted.PluginName(info.Type, info.Name))
	return pass("the name is %s", untrusted.Quote(info.Name))
}

func checkVersions(ctx context.Context, s *subject) outcome {
	info := s.asked.info
	versions := info.SupportedVersions
	s.tellAnnounced("supported_versions " + untrusted.QuoteAll(versions))
	require(len(versions) <= maxVersions, "%d versions are announced, and hosts accept %d at most", len(versions), maxVersions)
	for i, v := range versions {
		requireValid(untrusted.Name("version "+strconv.Itoa(i+1), v, maxVersion))
		expect(!slices.Contains(versions[:i], v), "version %s is announced twice", untrusted.Quote(v))
	}
	switch info.Type {
	case registerapi.CSIPlugin:
		return judgeVersions(versions, csiVersion1.MatchString, csiVersion.MatchString, "1.x, the only ones that hosts support", "no versions")
	case registerapi.DevicePlugin:
		return judgeKnown(versions, deviceapi.SupportedVersions[:])
	case registerapi.DRAPlugin:
		return judgeKnown(versions, []string{drav1.DRAPluginService, draBeta, draHealth, draHealthAlpha})
	}
	if len(versions) == 0 {
		return pass("none is announced, and the type %s demands none", untrusted.Quote(info.Type))
	}
	return pass("announced are %s", untrusted.QuoteAll(versions))
}

func judgeKnown(versions, known []string) outcome {
	in := func(v string) bool { return slices.Contains(known, v) }
	return judgeVersions(versions, in, in, "one of "+untrusted.QuoteAll(known), "not known for this type")
}

// judgeVersions checks that one of the announced versions is supported and that all are known. wanted and unknown are parts of its
// messages.
func judgeVersions(versions []string, supported, known func(string) bool, wanted, unknown string) outcome {
	strange := slices.DeleteFunc(slices.Clone(versions), known)
	require(slices.ContainsFunc(versions, supported), "none of the announced versions %s is %s", untrusted.QuoteAll(versions), wanted)
	expect(len(strange) == 0, "%s are %s, and are ignored", untrusted.QuoteAll(strange), unknown)
	return pass("announced are %s", untrusted.QuoteAll(versions))
}

func checkGetInfoAgain(ctx context.Context, s *subject) outcome {
	first := s.asked.info
	again, err := s.getInfo(ctx)
	requireCall("a later GetInfo", err)
	if !proto.Equal(first, again) {
		s.trace.add("(the first GetInfo)", show(first))
		return fail("a later GetInfo differs from the first")
	}
	return pass("two answers are equal")
}

func checkEndpoint(ctx context.Context, s *subject) outcome {
	info := s.asked.info
	if info.Endpoint == "" {
		return pass("the endpoint is empty, so it is the registration socket itself")
	}
	s.tellAnnounced("endpoint " + untrusted.Quote(info.Endpoint))
	path, err := s.endpoint(info)
	require(err == nil, "%v: %s", err, untrusted.Quote(info.Endpoint))
	_, err = sock.Probe(ctx, path)
	require(err == nil, "nobody can be reached at the endpoint: %s", text(err))
	clean := filepath.Clean(path)
	expect(clean == path, "the endpoint %s is another way to write %s; hosts that compare paths see two", untrusted.Quote(path),
		untrusted.Quote(clean))
	return pass("a process accepts at %s", untrusted.Quote(path))
}

func checkTold(ctx context.Context, s *subject) outcome {
	for _, time := range []string{"first", "second"} {
		requireCall("the "+time+" NotifyRegistrationStatus", s.notify(ctx, true, ""))
	}
	return pass("accepted twice")
}

func checkHostRestart(ctx context.Context, s *subject) outcome {
	first := s.asked.info
	// Leave a request unanswered, as a host that is killed does.
	conn := s.connectRaw(ctx)
	requests, err := unreadRequests(s.question(), 1)
	if err == nil {
		s.speak(conn, string(requests))
	}
	_ = conn.Close() // as the kernel does for a host that died
	s.trace.reset()
	again, err := s.getInfo(ctx)
	requireCall("after the host was gone, GetInfo", err)
	require(again.Type == first.Type && again.Name == first.Name, "after the host was gone, the plugin has another name")
	if !proto.Equal(first, again) {
		s.trace.add("(the first GetInfo)", show(first))
		return warn("after the host was gone, the plugin gives another answer")
	}
	requireCall("after the host was gone, NotifyRegistrationStatus", s.notify(ctx, true, ""))
	return pass("asked and notified again after the connection was lost")
}

func checkRefusal(ctx context.Context, s *subject) outcome {
	run := s.run
	err := s.notify(ctx, false, "refused by patchbay verify, to see what happens")
	if run.Await(ctx, settle) {
		s.run = nil
		how := run.End()
		_ = run.Kill() // a driver whose registrar has ended is started with it again
		if _, err := sock.Stat(s.path); err == nil {
			s.runner.Sweep()
			return warn("the plugin exits when it is refused (%s), and leaves its socket", how)
		}
		return pass("the plugin exits when it is refused, and removes its socket: %s", how)
	}
	// An error of the plugin itself is an answer, which hosts ignore.
	require(answered(err), "the refusal %s, and the plugin did not exit", brief(err))
	_, err = s.getInfo(ctx)
	requireCall("after a refusal, GetInfo", err)
	requireCall("after a refusal, the status \"registered\"", s.notify(ctx, true, ""))
	return pass("the plugin keeps serving, and is registered at the next attempt")
}
