//go:build linux

package failpoints

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"syscall"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
)

var page = rig.NewPage("../../docs/reference/failpoints.md")

// failure is a point that fails and what happens then.
type failure struct {
	// point is the name of the point, unless arms has more than it; then it is the first.
	point string
	arms  []Arm
	// fails says what fails, and happens what happens then.
	fails, happens string
	// said says where the daemon says what happened: all must come.
	said []naming
	play func(*scene, *failure)
}

// naming is a text, and where it is said.
type naming struct{ where, text string }

// Where something is said.
const (
	inEvent     = "event"     // KIND: MESSAGE
	inCondition = "condition" // NAME: MESSAGE, in patchbay list, /readyz and the metrics
	inLog       = "log"
	inError     = "error"  // of the call, or with which the daemon ends
	toPlugin    = "plugin" // the first error that the guest is told; otherwise it is told none
)

func in(where string, texts ...string) []naming {
	var all []naming
	for _, text := range texts {
		all = append(all, naming{where, text})
	}
	return all
}

// told is a text in an event of a kind, and what the plugin is told.
func told(kind, text string) []naming { return append(in(inEvent, kind+text), in(toPlugin, text)...) }

func digest() string {
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

const (
	polled  = "the directory is polled every second until it can be watched again"
	retried = "registration is retried with growing pauses, and succeeds"
	refused = "the daemon does not start, and leaves no file; the next start succeeds"
	kept    = "the daemon does not start; the state is unchanged for the next start"
	takenIn = "the registration is rolled back, and retried until it is saved"
	again   = "the launch is retried after a pause"
)

// groups are the headings of the documentation, in its order.
func groups() []group {
	return []group{
		{"Plugin directories", []failure{
			{
				point: "dirwatchNotifier", fails: "opening inotify", happens: polled,
				said: in(inEvent, "degraded: ", "file events are not available (injected: "), play: starting,
			},
			{
				point: "dirwatchMounts", fails: "subscribing to mount changes",
				happens: "a few seconds later directories are scanned again and the subscription is retried", play: starting,
			},
			{
				point: "dirwatchAdd", fails: "watching a directory", happens: polled,
				said: in(inEvent, "the directory cannot be watched (injected: "), play: starting,
			},
			{
				point: "dirwatchStat", fails: "checking a directory", happens: "it is retried a second later",
				said: in(inEvent, "the directory cannot be read (injected: "), play: starting,
			},
			{
				point: "dirwatchOpen", arms: []Arm{{"dirwatchOpen", fmt.Sprintf("1*return(%d)", int(syscall.EMFILE))}},
				fails: "opening a directory", happens: "it is retried a second later", said: in(inEvent, "too many open files"),
				play: starting,
			},
			{
				point: "dirwatchRead", fails: "reading a directory", happens: "it is retried a second later",
				said: in(inEvent, "the directory cannot be read (injected: "), play: starting,
			},
			{
				point: "dirwatchLook", fails: "checking a socket", happens: "its directory is read again a second later; then the plugin is registered",
				said: in(inEvent, "the directory cannot be read (injected: "), play: appears,
			},
			{
				point: "dirwatchEvent", arms: []Arm{{"dirwatchEvent", "1*return()"}},
				fails: "keeping up with file events: one is lost", happens: "all directories are read again; the plugin is registered",
				said: in(inEvent, "some were lost; a scan finds the changes"), play: appears,
			},
		}},
		{"Registration", []failure{
			{
				point: "transportConnect", fails: "connecting to a plugin", happens: retried,
				said: in(inEvent, "failed: cannot connect to"), play: appears,
			},
			{
				point: "transportPeer", fails: "asking the kernel which process serves the socket", happens: retried,
				said: in(inEvent, "failed: cannot connect to"), play: appears,
			},
			{
				point: "registrationGetInfo", fails: "the GetInfo call", happens: retried,
				said: in(inEvent, "failed: GetInfo on "), play: appears,
			},
			{
				point: "registrationRead", fails: "reading the GetInfo response", happens: retried,
				said: in(inEvent, "the connection to the plugin ended: "), play: appears,
			},
			{
				point: "handlerValidate", fails: "the handler's ValidatePlugin", happens: retried,
				said: told("refused: ", "plugin validation failed: "), play: appears,
			},
			{
				point: "handlerValidate", arms: []Arm{{"handlerValidate", `1*panic("injected")`}},
				fails: "the handler's ValidatePlugin, with a panic", happens: retried,
				said: told("refused: ", "plugin validation failed: the handler panicked in ValidatePlugin: "), play: appears,
			},
			{
				point: "handlerRegister", fails: "the handler's RegisterPlugin", happens: retried,
				said: told("refused: ", "plugin registration failed: "), play: appears,
			},
			{
				point: "admissionDigest", fails: "identifying the program that serves", happens: retried,
				said: told("", "is not admitted, because its program cannot be identified"), play: admits(appears),
			},
			{
				point: "admissionAnswer", arms: []Arm{{"admissionAnswer", "1*return()"}},
				fails: "the answer of the admission plugin", happens: retried,
				said: in(inEvent, "failed: "), play: admits(appears),
			},
			{
				point: "handlerDeRegister", arms: []Arm{{"handlerDeRegister", `1*panic("injected")`}},
				fails: "the handler's DeRegisterPlugin, with a panic", happens: "the panic is logged; the plugin is deregistered",
				said: in(inLog, "the handler panicked in DeRegisterPlugin"), play: leaves,
			},
			{
				point: "endpointCall", fails: "asking a CSI driver whether it is ready", happens: "the driver is asked again, and registered", play: csi(appears),
			},
			{
				point: "endpointCall", arms: []Arm{{"endpointCall", `1*off->1*return("injected")`}},
				fails: "asking a CSI driver for its name", happens: "the driver is asked again, and registered", play: csi(appears),
			},
			{
				point: "registrationNotify", fails: "notifying the plugin that it is registered", happens: "the registration is rolled back; " + retried,
				said: in(inEvent, "failed: cannot notify the plugin that it is registered: "), play: appears,
			},
			{
				point: "registrationHold", fails: "keeping the connection that would signal the plugin's end",
				happens: "its process is watched, and its socket probed now and then", play: appears,
			},
			{
				point: "sockWatch", arms: []Arm{times("sockWatch", 2)}, fails: "watching the plugin at all",
				happens: "its socket is probed now and then; its death is detected within 5 s", play: dies,
			},
			{
				point: "transportProbe", arms: []Arm{times("sockWatch", 2), once("transportProbe")},
				fails: "probing that socket", happens: "it is probed again; the plugin stays registered until nothing accepts connections there", play: dies,
			},
		}},
		{"State file", []failure{
			{point: "boltstateCreate", fails: "creating the state file", happens: refused, said: in(inError, "cannot create state file"), play: starts},
			{point: "boltstateFormat", fails: "writing an empty state", happens: refused, said: in(inError, "cannot create state file"), play: starts},
			{
				point: "boltstateLink", arms: []Arm{{"boltstateLink", "1*return()"}}, fails: "linking the state file into place", happens: refused,
				said: in(inError, "cannot create state file"), play: starts,
			},
			{
				point: "boltstateSyncDir", fails: "syncing its directory", happens: "the daemon does not start; the next start finds the empty state",
				said: in(inError, "cannot create state file"), play: starts,
			},
			{point: "boltstateOpen", fails: "opening the state file", happens: kept, said: in(inError, "cannot open state file"), play: restarts},
			{point: "boltstateInspect", fails: "checking the state file", happens: kept, said: in(inError, "cannot open state file"), play: restarts},
			{point: "boltstateLoad", fails: "reading the registered plugins", happens: kept, said: in(inError, "cannot read state file"), play: restarts},
			{
				point: "boltstateBegin", fails: "beginning a transaction", happens: takenIn,
				said: in(inEvent, "failed: cannot save the registration: "), play: appears,
			},
			{
				point: "boltstatePut", fails: "writing a record", happens: takenIn,
				said: in(inEvent, "failed: cannot save the registration: ", "degraded: cannot write state file", "recovered: "), play: appears,
			},
			{
				point: "boltstateCommit", arms: []Arm{times("boltstateCommit", 3)}, fails: "committing a transaction, three times", happens: takenIn,
				said: in(inEvent, "failed: cannot save the registration: ", "degraded: cannot write state file", "recovered: "), play: appears,
			},
			{
				point: "boltstateCommit", fails: "committing the registration of a CSI driver, under its type and its role", happens: takenIn,
				said: in(inEvent, "failed: cannot save the registration: "), play: csi(appears),
			},
			{
				point: "boltstateSync", fails: "syncing a transaction that is already in the file",
				happens: "the transaction is removed from the file; " + takenIn,
				said:    in(inEvent, "failed: cannot save the registration: ", "degraded: cannot write state file", "recovered: "), play: appears,
			},
			{
				point: "boltstateReopen", arms: []Arm{once("boltstateReopen"), once("boltstateCommit")},
				fails: "reopening the file after that", happens: takenIn,
				said: in(inEvent, "failed: cannot save the registration: ", "degraded: cannot write state file", "recovered: "), play: appears,
			},
			{
				point: "boltstateSettle", arms: []Arm{times("boltstateSettle", 2), once("boltstateSync")},
				fails: "removing a transaction from the file", happens: takenIn,
				said: in(inEvent, "failed: cannot save the registration: ", "degraded: cannot write state file", "recovered: "), play: appears,
			},
			{
				point: "boltstateCommit", arms: []Arm{times("boltstateCommit", 3)}, fails: "committing a deregistration, three times",
				happens: "the plugin stops being current at once; it is removed from the file when a commit succeeds",
				said:    in(inEvent, "deregistered: ", "degraded: cannot write state file", "recovered: "), play: leaves,
			},
			{
				point: "boltstateCommit", arms: []Arm{times("boltstateCommit", 3)}, fails: "committing the deregistration of a CSI driver, three times",
				happens: "the plugin stops being current at once; it is removed from the file, also under its role, when a commit succeeds",
				said:    in(inEvent, "deregistered: ", "degraded: cannot write state file", "recovered: "), play: csi(leaves),
			},
			{
				point: "boltstateCommit", arms: []Arm{once("registrationNotify"), {"boltstateCommit", `1*off->3*return("injected")`}},
				fails: "committing that a registration was rolled back", happens: takenIn,
				said: in(inEvent, "failed: cannot notify the plugin that it is registered: "), play: appears,
			},
			{
				point: "boltstateClose", fails: "closing the state file", happens: "the daemon exits with the error; the state is unchanged",
				said: in(inError, "cannot close state file"), play: stops,
			},
		}},
		{"Sockets of the daemon", []failure{
			{point: "daemonHTTP", fails: "listening for HTTP", happens: refused, said: in(inError, "cannot serve HTTP: "), play: starts},
			{
				point: "sockLock", fails: "locking the control socket", happens: refused,
				said: in(inError, "cannot serve the control API: cannot listen on "), play: starts,
			},
			{
				point: "sockBind", arms: []Arm{{"sockBind", fmt.Sprintf("1*return(%d)", int(syscall.ENOSPC))}}, fails: "binding the control socket", happens: refused,
				said: in(inError, "cannot serve the control API: cannot listen on ", "no space left on device"), play: starts,
			},
			{
				point: "sockPlaceLink", arms: []Arm{{"sockPlaceLink", "1*return()"}}, fails: "linking the control socket into place", happens: refused,
				said: in(inError, "cannot serve the control API: cannot listen on "), play: starts,
			},
			{
				point: "sockUnlink", fails: "removing the control socket at shutdown", happens: "the daemon exits with the error; the next one takes over the socket",
				said: in(inError, injected+"sockUnlink"), play: stops,
			},
			{
				point: "sockPlaceLink", arms: []Arm{{"sockPlaceLink", "1*return()"}}, fails: "linking a stable socket into place",
				happens: "the plugin is registered; the socket is created 5 s later", said: in(inCondition, "dispense: 1 plugins have no stable socket"),
				play: appears,
			},
			{
				point: "sockLock", fails: "locking the path of a stable socket", happens: "the plugin is registered; the socket is created 5 s later",
				said: in(inCondition, "dispense: 1 plugins have no stable socket"), play: appears,
			},
			{
				point: "sockWithdraw", fails: "removing a stable socket at shutdown", happens: "the next daemon takes over the socket",
				said: in(inLog, "cannot remove the stable socket of a plugin"), play: stops,
			},
			{
				point: "dispenseClear", fails: "looking for stale stable sockets", happens: "the daemon starts",
				said: in(inLog, "cannot search the dispense directory"), play: starting,
			},
		}},
		{"Calls", []failure{
			{
				point: "proxyStream", fails: "calling a plugin on behalf of a caller of its stable socket", happens: "the call fails, the next one succeeds",
				said: in(inError, "code = Unavailable", "cannot call plugin ExamplePlugin/neighbour: "), play: calls,
			},
			{
				point: "proxyRequest", fails: "reading a request", happens: "the call fails, the next one succeeds",
				said: in(inError, injected+"proxyRequest"), play: calls,
			},
			{
				point: "proxyResponse", fails: "reading a response", happens: "the call fails, the next one succeeds",
				said: in(inError, "code = Unavailable", injected+"proxyResponse"), play: calls,
			},
			{
				point: "controlEvent", fails: "sending an event to a caller of the control socket", happens: "the call fails, the next one succeeds",
				said: in(inError, "cannot read the events"),
				play: func(s *scene, f *failure) {
					s.begin()
					s.arm()
					for _, err := range s.client.Events(s.Context(), &patchbayv1.WatchEventsRequest{}) {
						s.err = err
					}
					s.hear(f.said)
					s.disarm()
				},
			},
			{
				point: "daemonHandler", fails: "creating a handler during a reload", happens: "nothing changes; the next reload succeeds",
				said: append(in(inError, "cannot create the accept handler"), append(in(inEvent, "reload-failed: cannot create the accept handler"),
					in(inCondition, "configuration: the configuration was not reloaded")...)...),
				play: reloads,
			},
			{
				point: "daemonHandler", fails: "creating a handler at startup", happens: "the daemon does not start; the next start succeeds",
				said: in(inError, "cannot create the accept handler"), play: restarts,
			},
			{
				point: "deviceBoard", fails: "creating the directory that announces device plugins which register on `kubelet.sock`",
				happens: "the daemon does not start; the next start succeeds", said: in(inError, "cannot create the device handler"), play: older(restarts),
			},
			{
				point: "launcherSet", fails: "switching to a new catalogue during a reload, after creating a handler",
				happens: "nothing changes; the next reload succeeds",
				said: append(in(inError, "cannot change to the new catalogue"), append(in(inEvent, "reload-failed: cannot change to the new catalogue"),
					in(inCondition, "configuration: the configuration was not reloaded")...)...),
				play: reloads,
			},
			{
				point: "launcherSet", fails: "switching to a catalogue at startup", happens: "the daemon does not start; the next start succeeds",
				said: in(inError, injected+"launcherSet"), play: restarts,
			},
		}},
		{"Launched plugins", []failure{
			{
				point: "hostPrivateDir", arms: []Arm{{"hostPrivateDir", "1*return()"}}, fails: "creating the directory of the host's socket",
				happens: again, said: in(inEvent, "cannot launch plugin guest: make a private directory for the host's socket: "),
				play: launchesFirst,
			},
			{
				point: "hostListen", arms: []Arm{{"hostListen", "1*return()"}}, fails: "listening for plugins", happens: again,
				said: in(inEvent, "cannot launch plugin guest: listen on the host's socket: "), play: launchesFirst,
			},
			{
				point: "hostConnect", fails: "identifying the plugin that connects to the host", happens: "the plugin ends and is restarted; pending admission checks are repeated",
				said: in(inEvent, "failed: ", "the admission plugin ended before it answered"), play: admits(asksFirst),
			},
			{
				point: "processWatchdog", fails: "starting the watchdog of the processes", happens: again,
				said: in(inEvent, "start the watchdog of the processes: "), play: launches(nil),
			},
			{
				point: "processCgroup", fails: "creating the cgroup of all processes", happens: "they run without it, which is logged",
				said: in(inLog, "no cgroup for processes"), play: launches(nil),
			},
			{
				point: "processLeaf", fails: "creating the cgroup of one process", happens: "it runs without it, which is logged",
				said: in(inLog, "no cgroup for a process"), play: launches(nil),
			},
			{
				point: "processPipe", arms: []Arm{{"processPipe", `3*off->1*return("injected: processPipe")`}},
				fails: "creating the pipe for standard error", happens: again, said: in(inEvent, "make a pipe: "), play: launches(nil),
			},
			{
				point: "processFeed", fails: "writing the handshake", happens: again, said: in(inEvent, "for standard input: "), play: launches(nil),
			},
			{
				point: "processFork", fails: "starting a process in its cgroup", happens: "it is started outside it, which is logged",
				said: in(inLog, "a process could not enter its cgroup and runs without one"), play: launches(nil),
			},
			{
				point: "processFork", arms: []Arm{times("processFork", 2)}, fails: "starting a process at all", happens: again,
				said: in(inEvent, injected+"processFork"), play: launches(nil),
			},
			{
				point: "processLimit", fails: "applying the limits of a process", happens: "it is killed before it runs; " + again,
				said: in(inEvent, injected+"processLimit"), play: launches(func(p *catalogue.Plugin) { p.Limits.OpenFiles = 1000 }),
			},
			{
				point: "hostRoom", fails: "creating a directory where the plugin can serve as another user", happens: again,
				said: in(inEvent, injected+"hostRoom"), play: launches(func(p *catalogue.Plugin) { p.User = strconv.Itoa(os.Geteuid()) }),
			},
			{
				point: "hostSocket", fails: "making the socket that a launched plugin inherits", happens: again,
				said: in(inEvent, injected+"hostSocket"), play: launches(nil),
			},
			{
				point: "hostStarted", arms: []Arm{{"hostStarted", "1*sleep(1000)"}}, fails: "recording a started process, delayed by one second",
				happens: "its socket waits that long, and is recognised as a launched plugin's", said: in(inEvent, "registered: registered"),
				play: launches(nil),
			},
			{
				point: "processRemove", arms: []Arm{once("processRemove"), once("processKill")},
				fails:   "removing the cgroup of a process that has ended, and killing what is left in it",
				happens: "both are retried, and the cgroup is removed", play: retires,
			},
			{
				point: "processKeeper", fails: "starting the keeper of a process that should survive the host", happens: again,
				said: in(inEvent, injected+"processKeeper"), play: launches(survives),
			},
			{
				point: "processAdopt", fails: "to reach a process that survived",
				happens: "the plugin is restarted; the process is tried again, and then ended", said: in(inEvent, "cannot adopt all plugins: "),
				play: adopts,
			},
			{
				point: "exeMemory", fails: "creating the memory file that holds the copy of a program to be checked", happens: again,
				said: in(inEvent, "make a file in memory"), play: launches(pinned),
			},
			{
				point: "exeCopy", fails: "copying all of the program", happens: again, said: in(inEvent, "copy into memory: "), play: launches(pinned),
			},
			{
				point: "exeSeal", fails: "sealing the copy", happens: again, said: in(inEvent, "seal the copy: "), play: launches(pinned),
			},
		}},
	}
}
