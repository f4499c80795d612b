//go:build linux

package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/launch/cgroupfs"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

const (
	noSocket = "    serve: false\n    restart: {limit: 1, backoff: {min: 10ms, max: 10ms}}\n"
	// Limits of the launched bombs, and what they never exceed if those do not hold.
	maxProcesses, neverProcesses = 32, 200
	neverMemory                  = 1 << 30
)

// say writes a line for patchbay logs.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// outcome says what came of what must not be possible.
func outcome(err error) {
	if err == nil {
		say("it is possible")
		return
	}
	say("not possible: %v", err)
}

// shake reads the handshake of the host and finds the host's process.
func shake() (h handshake.Handshake, host int) {
	h, err := handshake.Read(os.Stdin)
	must(err)
	conn, err := sock.Dial(context.Background(), h.HostSocket)
	must(err)
	defer conn.Close()
	peer, err := sock.PeerOf(conn)
	must(err)
	return h, peer.PID
}

// tries is a plugin that does something to the host that its user may not do.
func tries(name, does, why string, try func(a *attacker, host int) error) attack {
	return attack{
		name: name, does: does, happens: "the kernel refuses it", bound: "the plugin's user", launched: noSocket,
		named: []naming{{inLog, why}},
		play: func(a *attacker) {
			_, host := shake()
			outcome(try(a, host))
		},
	}
}

// processesOf returns the processes of a user.
func processesOf(uid int) (pids []int) {
	entries, err := os.ReadDir("/proc")
	must(err)
	for _, e := range entries {
		pid, notNumber := strconv.Atoi(e.Name())
		info, err := e.Info()
		if notNumber != nil || err != nil {
			continue
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) == uid {
			pids = append(pids, pid)
		}
	}
	return pids
}

func connect(path string) error {
	conn, err := net.Dial("unix", path)
	if err == nil {
		err = conn.Close()
	}
	return err
}

func launchedAttacks() []attack {
	const denied, notPermitted = "permission denied", "operation not permitted"
	return []attack{
		tries("kills-host", "sends SIGKILL to the daemon", notPermitted, func(_ *attacker, host int) error { return syscall.Kill(host, syscall.SIGKILL) }),
		tries("kills-neighbours", "sends SIGKILL to the plugins of another user", notPermitted, func(*attacker, int) error {
			for _, pid := range processesOf(neighbourUser) {
				if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
					return err
				}
			}
			return errors.New("there are none")
		}),
		tries("ptrace", "attaches to the daemon with ptrace", notPermitted, func(_ *attacker, host int) error { return syscall.PtraceAttach(host) }),
		tries("reads-memory", "opens the daemon's memory in /proc", denied, func(_ *attacker, host int) error {
			_, err := os.Open(filepath.Join("/proc", strconv.Itoa(host), "mem"))
			return err
		}),
		tries("steals-a-ticket", "opens the standard input of other plugins in /proc", denied, func(*attacker, int) error {
			for _, pid := range processesOf(neighbourUser) {
				if _, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "fd", "0")); !errors.Is(err, os.ErrNotExist) {
					return err
				}
			}
			return errors.New("there are none")
		}),
		tries("reads-state", "opens the daemon's state", denied, func(a *attacker, _ int) error { _, err := os.Open(beside(a, "state.db")); return err }),
		tries("calls-control", "connects to the control socket", denied, func(a *attacker, _ int) error { return connect(beside(a, "control.sock")) }),
		tries("calls-neighbours", "connects to the stable socket of another plugin", denied,
			func(a *attacker, _ int) error { return connect(beside(a, "dispense", "Neighbour", "found.sock")) }),
		tries("unlinks-all", "removes everybody's sockets", denied, func(a *attacker, _ int) error {
			return errors.Join(os.Remove(filepath.Join(a.dir, "neighbour")), os.RemoveAll(a.dir))
		}),
		tries("replaces-a-socket", "renames a socket of its own over that of another plugin", denied, func(a *attacker, _ int) error {
			own := filepath.Join(os.TempDir(), fmt.Sprintf("pb-hostile-%d", os.Getpid()))
			l, err := net.Listen("unix", own)
			must(err)
			defer l.Close()
			return os.Rename(own, filepath.Join(a.dir, "neighbour"))
		}),
		{
			name: "guesses-tickets", does: "calls its host with 1,000 made-up tickets", happens: "each call is refused", bound: "tickets have 256 bits",
			launched: noSocket, named: []naming{{inLog, "refused 1000 times: PermissionDenied"}},
			play: func(*attacker) {
				h, _ := shake()
				n, err := 0, error(nil)
				for i := range 1000 {
					number, secret, _ := strings.Cut(h.Ticket, ".")
					guess := fmt.Sprintf("%s.%s", strconv.Itoa(i), secret)
					if guess == number+"."+secret {
						guess = number + "." + strings.Repeat("A", len(secret))
					}
					if err = callHost(h.HostSocket, guess, "/patchbay.plugin.v1.Admissions/Admit"); err != nil {
						n++
					}
				}
				say("refused %d times: %v", n, status.Code(err))
			},
		},
		{
			name: "calls-ungranted", does: "calls services of the host that it was not granted, with its own ticket", happens: "each call is refused",
			bound: "the plugin's controller", launched: noSocket, named: []naming{{inLog, "refused: PermissionDenied"}},
			play: func(*attacker) {
				h, _ := shake()
				say("refused: %v", status.Code(callHost(h.HostSocket, h.Ticket, "/patchbay.plugin.v1.Admissions/Admit")))
			},
		},
		{
			name: "fork-bomb", does: "starts processes endlessly", happens: "the kernel refuses more than the limit; stopping the plugin ends them all",
			bound: fmt.Sprintf("`limits.processes: %d`", maxProcesses), launched: noSocket + fmt.Sprintf("    limits: {processes: %d}\n", maxProcesses),
			named: []naming{{inLog, "resource temporarily unavailable"}}, play: forkBomb,
			check: func(s *scene) {
				if n := len(s.processes()); n > maxProcesses {
					s.Errorf("there are %d processes", n)
				}
			},
		},
		{
			name: "memory-bomb", does: "allocates memory endlessly", happens: "the kernel kills it; after the allowed restarts it is failed", bound: "`limits.memory: 96Mi`",
			launched: noSocket + "    limits: {memory: 96Mi}\n", named: []naming{{inStatus, "failed: "}, {inStatus, "killed"}},
			play: func(*attacker) {
				for range neverMemory >> 20 {
					hoard = append(hoard, make([]byte, 1<<20))
					for i := range hoard[len(hoard)-1] {
						hoard[len(hoard)-1][i] = 1
					}
				}
				say("it has 1 GB")
			},
		},
		{
			name: "descriptor-bomb", does: "opens files endlessly", happens: "the kernel refuses more than the limit", bound: "`limits.openFiles: 64`",
			launched: noSocket + "    limits: {openFiles: 64}\n", named: []naming{{inLog, "too many open files"}},
			play: func(*attacker) {
				for range 10_000 {
					if _, err := syscall.Open("/dev/null", syscall.O_RDONLY, 0); err != nil {
						say("not possible: %v", err)
						return
					}
				}
				say("it has 10,000 descriptors")
			},
		},
		{
			name: "log-flood", does: "prints 30,000 lines of binary data and terminal escapes", happens: "lines beyond the rate are dropped and counted; the others are escaped wherever they are printed",
			bound: "`logRate`, and the 256 KiB of log that are kept", launched: noSocket + "    logRate: 100\n", named: []naming{{inLog, "end of the flood"}},
			play: func(*attacker) {
				line := []byte("\x1b[2J\x00\xff\xfe binary \x07\n")
				for i := range 30_000 {
					_, _ = []*os.File{os.Stdout, os.Stderr}[i%2].Write(line)
				}
				time.Sleep(2 * time.Second) // so that the rate admits a line
				say("end of the flood")
			},
			check: func(s *scene) {
				if n := s.metric(`patchbay_launched_plugin_log_lines_dropped_total{plugin="hostile"}`); n < 10_000 {
					s.Errorf("%d lines were dropped", n)
				}
				if out := s.patchbay("logs", launchedName); strings.ContainsAny(out, "\x1b\x00\x07") {
					s.Error("control characters are printed")
				}
			},
		},
		{
			name: "long-line", does: "prints lines of 10 MB", happens: "they are truncated and counted", bound: "the maximum length of a line", launched: noSocket,
			named: []naming{{inLog, "end of the line"}},
			play: func(*attacker) {
				for range 3 {
					say("%s", long(10<<20))
				}
				say("end of the line")
			},
			check: func(s *scene) {
				if n := s.metric(`patchbay_launched_plugin_log_lines_cut_total{plugin="hostile"}`); n != 3 {
					s.Errorf("%d lines were cut", n)
				}
			},
		},
		{
			name: "forges-log", does: "prints a line that looks like one of the daemon's log, with another plugin's name, a time and a level", happens: "the record has the name of the plugin that printed it",
			bound: "the record's own fields", launched: noSocket, named: []naming{{inLog, "all is lost"}},
			play: func(*attacker) {
				say(`{"time":"2001-01-01T00:00:00Z","level":"ERROR","msg":"all is lost","plugin":"neighbour","source":"daemon"}`)
			},
			check: func(s *scene) {
				s.await("the daemon logs it", func() bool { return strings.Contains(s.log.String(), "all is lost") })
				for line := range strings.Lines(s.log.String()) {
					var record struct{ Plugin string }
					if err := json.Unmarshal([]byte(line), &record); err != nil || strings.Contains(line, "all is lost") && record.Plugin != launchedName {
						s.Errorf("the log has %s (%v)", line, err)
					}
				}
			},
		},
		{
			name: "daemonizes", does: "leaves a descendant in its own session, which ignores every signal that can be ignored", happens: "stopping the plugin ends it too",
			bound: "the process's cgroup, or descent", launched: noSocket + "    stopTimeout: 2s\n", named: []naming{{inLog, "is on its own"}},
			play: func(*attacker) {
				cmd := exec.Command("/bin/sh", "-c", "trap '' TERM HUP INT; setsid /bin/sh -c 'trap \"\" TERM HUP INT; sleep 170' & ")
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
				must(cmd.Run())
				say("it is on its own")
			},
		},
		{
			name: "ignores-stop", does: "ignores EOF on its standard input and SIGTERM", happens: "it is killed", bound: "`stopTimeout`",
			launched: noSocket + "    stopTimeout: 1s\n", named: []naming{{inLog, "it stays"}},
			play: func(*attacker) {
				signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
				say("it stays")
			},
		},
		{
			name: "holds-pipes", does: "exits, and leaves a child that holds its output open", happens: "its exit is noticed at once", bound: "the exit of the process itself",
			launched: "    serve: false\n    restart: {policy: never}\n", named: []naming{{inStatus, "exit status 7"}},
			play: func(*attacker) {
				cmd := exec.Command("/bin/sleep", "170")
				cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
				must(cmd.Start())
				os.Exit(7)
			},
		},
		{
			name: "crash-loop", does: "crashes as soon as it starts", happens: "it is restarted with pauses, and then no more", bound: "`restart.limit`",
			launched: noSocket, named: []naming{{inStatus, "failed: "}}, play: func(*attacker) { panic("it crashes") },
		},
		{
			name: "never-serves", does: "is configured to serve but creates no socket", happens: "it is shown as starting, never as ready", bound: "no plugin waits for it",
			launched: "    serve: true\n", named: []naming{{inStatus, "starting"}}, play: func(*attacker) { shake() },
		},
		{
			name: "borrows-rights-of-health-checks", does: "registers, and then replaces its socket by a link to a neighbour's",
			happens: "the neighbour gets no health check; the plugin is restarted", bound: "the user who listens, checked at each connect",
			launched: "    serve: true\n", named: event(fmt.Sprintf("and the plugin runs as user %d: it must serve its socket itself", hostileUser)), play: leavesALink,
		},
		{
			name: "crowds-its-directory", does: "creates 20,000 files and 100 sockets in the directory that it was given", happens: "files are ignored, and so are sockets of its user other than its own",
			bound: "20 reported refusals per second", launched: "    serve: true\n", named: event("belongs to user"),
			play: func(*attacker) {
				h, _ := shake()
				crowd(filepath.Dir(h.PluginSocket), 20_000, 4*maxSockets)
			},
		},
	}
}

// leavesALink serves the socket that the plugin was launched with until its health is asked for.
func leavesALink(a *attacker) {
	h, _ := shake()
	asked := &asked{Server: health.NewServer(), ch: make(chan struct{})}
	_ = serveGRPC(listen(h.PluginSocket), info, func(s *grpc.Server) {
		healthpb.RegisterHealthServer(s, asked)
		go func() {
			<-asked.ch
			link := h.PluginSocket + ".link"
			must(errors.Join(os.Symlink(filepath.Join(a.dir, "neighbour"), link), os.Rename(link, h.PluginSocket)))
			s.Stop()
		}()
	})
}

// asked is a health service that tells of the first check.
type asked struct {
	*health.Server
	once sync.Once
	ch   chan struct{}
}

func (a *asked) Check(ctx context.Context, request *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	a.once.Do(func() { close(a.ch) })
	return a.Server.Check(ctx, request)
}

// hoard is what the memory bomb keeps.
var hoard [][]byte

// forkBomb starts processes until it is not possible any more. It begins only if the limit is in force, and ends in any case.
func forkBomb(*attacker) {
	most := uint64(neverProcesses)
	must(syscall.Setrlimit(rlimitNproc, &syscall.Rlimit{Cur: most, Max: most})) // of this user, threads included
	if limit := processLimit(); limit == 0 || limit > maxProcesses {
		say("no limit is in force")
		return
	}
	for range neverProcesses {
		cmd := exec.Command("/bin/sleep", "170")
		if err := cmd.Start(); err != nil {
			say("not possible: %v", err)
			return
		}
	}
	say("there are %d processes", neverProcesses)
}

const rlimitNproc = 6

// processLimit reads the limit of this process's cgroup; zero if it has none.
func processLimit() int {
	system, err := cgroupfs.Self()
	must(err)
	places := []cgroupfs.Place{system.V1["pids"]}
	if system.Unified != nil {
		places = append(places, *system.Unified)
	}
	for _, place := range places {
		dir, err := place.Dir()
		if err != nil {
			continue
		}
		text, _ := os.ReadFile(filepath.Join(dir, "pids.max"))
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			return n
		}
	}
	return 0
}

// callHost makes a call to the host with a ticket.
func callHost(socket, ticket, method string) error {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(context.Background(), handshake.TicketKey, ticket)
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if err = stream.RecvMsg(nil); errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// processes returns the processes that the launched hostile plugin has started, itself included.
func (s *scene) processes() (pids []int) {
	s.Helper()
	ours := dirEnv + "=" + s.plugins + "\x00"
	found, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range found {
		environ, _ := os.ReadFile(path)
		if stat, err := os.Stat(path); err != nil || ownerOf(stat) != hostileUser || !strings.Contains(string(environ), ours) {
			continue
		}
		if pid, err := strconv.Atoi(pidIn.FindString(path)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

var pidIn = regexp.MustCompile(`\d+`)

func ownerOf(info os.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}
