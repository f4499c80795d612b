//go:build linux

package failpoints

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/patchbay-dev/patchbay/catalogue"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
)

var page = rig.NewPage("../../docs/reference/failpoints.md")

// failure is a point that fails and what happens then.
type failure struct {
	// point is the name of the point, unless arms has more than it; then it is the first.
	point string
	arms  []arm
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
	polled  = "the directory is looked at every second until it can be watched again"
	retried = "it is tried again with growing pauses, and registered"
	refused = "the daemon does not start, and leaves no file; the next start succeeds"
	kept    = "the daemon does not start; the state is as it was for the next one"
	takenIn = "it is taken back, and tried again until it is saved"
	again   = "the launch is tried again after a pause"
)

// groups are the headings of the documentation, in its order.
func groups() []group {
	return []group{
		{"Plugin directories", []failure{
			{
				point: "dirwatchNotifier", fails: "to open inotify", happens: polled,
				said: in(inEvent, "degraded: ", "file events are not available (injected: "), play: starting,
			},
			{
				point: "dirwatchMounts", fails: "to have the system tell of mounts",
				happens: "directories are looked at again a few seconds later, when it is tried again", play: starting,
			},
			{
				point: "dirwatchAdd", fails: "to watch a directory", happens: polled,
				said: in(inEvent, "the directory cannot be watched (injected: "), play: starting,
			},
			{
				point: "dirwatchStat", fails: "to look at a directory", happens: "it is tried again a second later",
				said: in(inEvent, "the directory cannot be read (injected: "), play: starting,
			},
			{
				point: "dirwatchOpen", arms: []arm{{"dirwatchOpen", fmt.Sprintf("1*return(%d)", int(syscall.EMFILE))}},
				fails: "to open a directory", happens: "it is tried again a second later", said: in(inEvent, "too many open files"),
				play: starting,
			},
			{
				point: "dirwatchRead", fails: "to read a directory", happens: "it is tried again a second later",
				said: in(inEvent, "the directory cannot be read (injected: "), play: starting,
			},
			{
				point: "dirwatchLook", fails: "to look at a socket", happens: "its directory is read again a second later; then it is registered",
				said: in(inEvent, "the directory cannot be read (injected: "), play: appears,
			},
			{
				point: "dirwatchEvent", arms: []arm{{"dirwatchEvent", "1*return()"}},
				fails: "to keep up with file events, of which one is lost", happens: "all directories are read again; the plugin is registered",
				said: in(inEvent, "some were lost; a scan makes up for them"), play: appears,
			},
		}},
		{"Registration", []failure{
			{
				point: "transportConnect", fails: "to connect to a plugin", happens: retried,
				said: in(inEvent, "failed: cannot connect to"), play: appears,
			},
			{
				point: "transportPeer", fails: "to ask the kernel who serves", happens: retried,
				said: in(inEvent, "failed: cannot connect to"), play: appears,
			},
			{
				point: "registrationGetInfo", fails: "the call of GetInfo", happens: retried,
				said: in(inEvent, "failed: GetInfo on "), play: appears,
			},
			{
				point: "registrationRead", fails: "to read the answer of GetInfo", happens: retried,
				said: in(inEvent, "the connection to the plugin ended: "), play: appears,
			},
			{
				point: "handlerValidate", fails: "the handler's ValidatePlugin", happens: retried,
				said: told("refused: ", "plugin validation failed: "), play: appears,
			},
			{
				point: "handlerValidate", arms: []arm{{"handlerValidate", `1*panic("injected")`}},
				fails: "the handler's ValidatePlugin, which panics", happens: retried,
				said: told("refused: ", "plugin validation failed: the handler panicked in ValidatePlugin: "), play: appears,
			},
			{
				point: "handlerRegister", fails: "the handler's RegisterPlugin", happens: retried,
				said: told("refused: ", "plugin registration failed: "), play: appears,
			},
			{
				point: "admissionDigest", fails: "to find out which program serves", happens: retried,
				said: told("", "is not admitted, because it cannot be told what it is"), play: admits(appears),
			},
			{
				point: "admissionAnswer", arms: []arm{{"admissionAnswer", "1*return()"}},
				fails: "the admission plugin to answer", happens: retried,
				said: in(inEvent, "failed: "), play: admits(appears),
			},
			{
				point: "handlerDeRegister", arms: []arm{{"handlerDeRegister", `1*panic("injected")`}},
				fails: "the handler's DeRegisterPlugin, which panics", happens: "it is logged; the plugin is deregistered",
				said: in(inLog, "the handler panicked in DeRegisterPlugin"), play: leaves,
			},
			{
				point: "endpointCall", fails: "to ask a CSI driver whether it is ready", happens: "it is asked again, and registered", play: csi(appears),
			},
			{
				point: "endpointCall", arms: []arm{{"endpointCall", `1*off->1*return("injected")`}},
				fails: "to ask a CSI driver who it is", happens: retried,
				said: in(inEvent, "GetPluginInfo: Unavailable"), play: csi(appears),
			},
			{
				point: "registrationNotify", fails: "to tell the plugin that it is registered", happens: "it is taken back; " + retried,
				said: in(inEvent, "failed: cannot tell the plugin that it is registered: "), play: appears,
			},
			{
				point: "registrationHold", fails: "to keep the connection as a hint of the plugin's end",
				happens: "its process is watched, and its socket looked at now and then", play: appears,
			},
			{
				point: "sockWatch", arms: []arm{times("sockWatch", 2)}, fails: "to watch the plugin at all",
				happens: "its socket is looked at now and then; its death is noticed within 5 s", play: dies,
			},
			{
				point: "transportProbe", arms: []arm{times("sockWatch", 2), once("transportProbe")},
				fails: "to look at that socket", happens: "it is looked at again; the plugin stays registered until nobody accepts there", play: dies,
			},
		}},
		{"State file", []failure{
			{point: "boltstateCreate", fails: "to make the state file", happens: refused, said: in(inError, "cannot make state file"), play: starts},
			{point: "boltstateFormat", fails: "to write an empty state", happens: refused, said: in(inError, "cannot make state file"), play: starts},
			{
				point: "boltstateLink", arms: []arm{{"boltstateLink", "1*return()"}}, fails: "to bring it to its place", happens: refused,
				said: in(inError, "cannot make state file"), play: starts,
			},
			{
				point: "boltstateSyncDir", fails: "to sync its directory", happens: "the daemon does not start; the next start finds the empty state",
				said: in(inError, "cannot make state file"), play: starts,
			},
			{point: "boltstateOpen", fails: "to open the state file", happens: kept, said: in(inError, "cannot open state file"), play: restarts},
			{point: "boltstateInspect", fails: "to check the state file", happens: kept, said: in(inError, "cannot open state file"), play: restarts},
			{point: "boltstateLoad", fails: "to read the registered plugins", happens: kept, said: in(inError, "cannot read state file"), play: restarts},
			{
				point: "boltstateBegin", fails: "to begin a transaction", happens: takenIn,
				said: in(inEvent, "failed: cannot save the registration: "), play: appears,
			},
			{
				point: "boltstatePut", fails: "to write a record", happens: takenIn,
				said: in(inEvent, "failed: cannot save the registration: ", "degraded: cannot write state file", "recovered: "), play: appears,
			},
			{
				point: "boltstateCommit", arms: []arm{times("boltstateCommit", 3)}, fails: "to commit a transaction, three times", happens: takenIn,
				said: in(inEvent, "failed: cannot save the registration: ", "degraded: cannot write state file", "recovered: "), play: appears,
			},
			{
				point: "boltstateCommit", fails: "to commit the registration of a CSI driver, under its type and its role", happens: takenIn,
				said: in(inEvent, "failed: cannot save the registration: "), play: csi(appears),
			},
			{
				point: "boltstateSync", fails: "to sync a transaction that is in the file",
				happens: "the transaction is taken out of the file; " + takenIn,
				said:    in(inEvent, "failed: cannot save the registration: ", "degraded: cannot write state file", "recovered: "), play: appears,
			},
			{
				point: "boltstateReopen", arms: []arm{once("boltstateReopen"), once("boltstateCommit")},
				fails: "to open the file again after that", happens: takenIn,
				said: in(inEvent, "failed: cannot save the registration: ", "degraded: cannot write state file", "recovered: "), play: appears,
			},
			{
				point: "boltstateSettle", arms: []arm{times("boltstateSettle", 2), once("boltstateSync")},
				fails: "to take a transaction out of the file", happens: takenIn,
				said: in(inEvent, "failed: cannot save the registration: ", "degraded: cannot write state file", "recovered: "), play: appears,
			},
			{
				point: "boltstateCommit", arms: []arm{times("boltstateCommit", 3)}, fails: "to commit the end of a registration, three times",
				happens: "the plugin is not current any more at once; it is removed from the file when that works",
				said:    in(inEvent, "deregistered: ", "degraded: cannot write state file", "recovered: "), play: leaves,
			},
			{
				point: "boltstateCommit", arms: []arm{times("boltstateCommit", 3)}, fails: "to commit the end of a CSI driver's registration, three times",
				happens: "the plugin is not current any more at once; it is removed from the file, also under its role, when that works",
				said:    in(inEvent, "deregistered: ", "degraded: cannot write state file", "recovered: "), play: csi(leaves),
			},
			{
				point: "boltstateCommit", arms: []arm{once("registrationNotify"), {"boltstateCommit", `1*off->3*return("injected")`}},
				fails: "to commit that a registration is taken back", happens: takenIn,
				said: in(inEvent, "failed: cannot tell the plugin that it is registered: "), play: appears,
			},
			{
				point: "boltstateClose", fails: "to close the state file", happens: "the daemon ends with the error; the state is as it was",
				said: in(inError, "cannot close state file"), play: stops,
			},
		}},
		{"Sockets of the daemon", []failure{
			{point: "daemonHTTP", fails: "to listen for HTTP", happens: refused, said: in(inError, "cannot serve HTTP: "), play: starts},
			{
				point: "sockLock", fails: "to lock the control socket", happens: refused,
				said: in(inError, "cannot serve the control API: cannot listen on "), play: starts,
			},
			{
				point: "sockBind", arms: []arm{{"sockBind", fmt.Sprintf("1*return(%d)", int(syscall.ENOSPC))}}, fails: "to bind it", happens: refused,
				said: in(inError, "cannot serve the control API: cannot listen on ", "no space left on device"), play: starts,
			},
			{
				point: "sockPlaceLink", arms: []arm{{"sockPlaceLink", "1*return()"}}, fails: "to bring it to its place", happens: refused,
				said: in(inError, "cannot serve the control API: cannot listen on "), play: starts,
			},
			{
				point: "sockUnlink", fails: "to remove it at the end", happens: "the daemon ends with the error; the next one takes the place",
				said: in(inError, injected+"sockUnlink"), play: stops,
			},
			{
				point: "sockPlaceLink", arms: []arm{{"sockPlaceLink", "1*return()"}}, fails: "to bring a stable socket to its place",
				happens: "the plugin is registered; the socket is made 5 s later", said: in(inCondition, "dispense: 1 plugins have no stable socket"),
				play: appears,
			},
			{
				point: "sockLock", fails: "to lock the place of a stable socket", happens: "the plugin is registered; the socket is made 5 s later",
				said: in(inCondition, "dispense: 1 plugins have no stable socket"), play: appears,
			},
			{
				point: "sockWithdraw", fails: "to remove a stable socket at the end", happens: "the next daemon takes the place",
				said: in(inLog, "the stable socket of a plugin cannot be removed"), play: stops,
			},
			{
				point: "dispenseClear", fails: "to look for stable sockets that were left behind", happens: "the daemon starts",
				said: in(inLog, "the dispense directory cannot be searched"), play: starting,
			},
		}},
		{"Calls", []failure{
			{
				point: "proxyStream", fails: "to call a plugin for a caller of its stable socket", happens: "the call fails, the next one does not",
				said: in(inError, "code = Unavailable", "cannot call plugin ExamplePlugin/neighbour: "), play: calls,
			},
			{
				point: "proxyRequest", fails: "to read a request", happens: "the call fails, the next one does not",
				said: in(inError, injected+"proxyRequest"), play: calls,
			},
			{
				point: "proxyResponse", fails: "to read an answer", happens: "the call fails, the next one does not",
				said: in(inError, "code = Unavailable", injected+"proxyResponse"), play: calls,
			},
			{
				point: "controlEvent", fails: "to send an event to a caller of the control socket", happens: "the call fails, the next one does not",
				said: in(inError, "cannot read the events"),
				play: func(s *scene, f *failure) {
					s.begin()
					s.arm()
					for _, err := range s.client.Events(s.Context(), client.EventsOptions{}) {
						s.err = err
					}
					s.hear(f.said)
					s.disarm()
				},
			},
			{
				point: "daemonHandler", fails: "to make a handler in a reload", happens: "nothing is changed; the next reload succeeds",
				said: append(in(inError, "cannot make the accept handler"), append(in(inEvent, "reload-failed: cannot make the accept handler"),
					in(inCondition, "configuration: the configuration was not reloaded")...)...),
				play: reloads,
			},
			{
				point: "daemonHandler", fails: "to make a handler at the start", happens: "the daemon does not start; the next start succeeds",
				said: in(inError, "cannot make the accept handler"), play: restarts,
			},
			{
				point: "deviceBoard", fails: "to make the directory in which device plugins are announced that register the older way",
				happens: "the daemon does not start; the next start succeeds", said: in(inError, "cannot make the device handler"), play: older(restarts),
			},
			{
				point: "launcherSet", fails: "to change to a catalogue in a reload, after a handler was made",
				happens: "nothing is changed; the next reload succeeds",
				said: append(in(inError, "cannot change to the new catalogue"), append(in(inEvent, "reload-failed: cannot change to the new catalogue"),
					in(inCondition, "configuration: the configuration was not reloaded")...)...),
				play: reloads,
			},
			{
				point: "launcherSet", fails: "to change to a catalogue at the start", happens: "the daemon does not start; the next start succeeds",
				said: in(inError, injected+"launcherSet"), play: restarts,
			},
		}},
		{"Launched plugins", []failure{
			{
				point: "hostPrivateDir", arms: []arm{{"hostPrivateDir", "2*return()"}}, fails: "to make the directory of the host's socket, twice",
				happens: again,
				said: in(inEvent, "cannot adopt plugins: make a private directory for the host's socket: ",
					"cannot launch plugin guest: make a private directory for the host's socket: "),
				play: launchesFirst,
			},
			{
				point: "hostListen", arms: []arm{{"hostListen", "2*return()"}}, fails: "to listen for plugins, twice", happens: again,
				said: in(inEvent, "cannot adopt plugins: listen on the host's socket: ", "cannot launch plugin guest: listen on the host's socket: "),
				play: launchesFirst,
			},
			{
				point: "hostConnect", fails: "to find out which plugin connects to the host", happens: "the plugin ends and is started again; what waits for its answer is asked again",
				said: in(inEvent, "failed: ", "the admission plugin ended before it answered"), play: admits(asksFirst),
			},
			{
				point: "processWatchdog", fails: "to start the watchdog of the processes", happens: again,
				said: in(inEvent, "start the watchdog of the processes: "), play: launches(nil),
			},
			{
				point: "processCgroup", fails: "to make a cgroup for the processes", happens: "they run without, which is logged",
				said: in(inLog, "no cgroup for processes"), play: launches(nil),
			},
			{
				point: "processLeaf", fails: "to make a cgroup for a process", happens: "it runs without, which is logged",
				said: in(inLog, "no cgroup for a process"), play: launches(nil),
			},
			{
				point: "processPipe", arms: []arm{{"processPipe", `3*off->1*return("injected: processPipe")`}},
				fails: "to make the pipe for standard error", happens: again, said: in(inEvent, "make a pipe: "), play: launches(nil),
			},
			{
				point: "processFeed", fails: "to write the handshake", happens: again, said: in(inEvent, "for standard input: "), play: launches(nil),
			},
			{
				point: "processFork", fails: "to start a process in its cgroup", happens: "it is started without, which is logged",
				said: in(inLog, "a process was refused its cgroup and runs without"), play: launches(nil),
			},
			{
				point: "processFork", arms: []arm{times("processFork", 2)}, fails: "to start a process at all", happens: again,
				said: in(inEvent, injected+"processFork"), play: launches(nil),
			},
			{
				point: "processLimit", fails: "to limit a process", happens: "it is killed before it has run; " + again,
				said: in(inEvent, injected+"processLimit"), play: launches(func(p *catalogue.Plugin) { p.Limits.OpenFiles = 1000 }),
			},
			{
				point: "hostRoom", fails: "to make a directory in which it can serve as a user", happens: again,
				said: in(inEvent, injected+"hostRoom"), play: launches(func(p *catalogue.Plugin) { p.User = strconv.Itoa(os.Geteuid()) }),
			},
			{
				point: "hostStarted", arms: []arm{{"hostStarted", "1*sleep(1000)"}}, fails: "for a second, to see that a process was started",
				happens: "its socket waits so long, and is known as that of a launched plugin", said: in(inEvent, "registered: registered"),
				play: launches(nil),
			},
			{
				point: "processRemove", arms: []arm{once("processRemove"), once("processKill")},
				fails:   "to remove the cgroup of a process that has ended, and to kill what may be in it",
				happens: "both are tried again, and it is removed", play: retires,
			},
			{
				point: "processKeeper", fails: "to start the keeper of a process that is to survive", happens: again,
				said: in(inEvent, injected+"processKeeper"), play: launches(survives),
			},
			{
				point: "processAdopt", fails: "to reach a process that survived",
				happens: "the plugin is started anew; the process is tried again, and then ended", said: in(inEvent, "cannot adopt all plugins: "),
				play: adopts,
			},
			{
				point: "exeMemory", fails: "to make a file in memory to which a program is copied to check it", happens: again,
				said: in(inEvent, "make a file in memory"), play: launches(pinned),
			},
			{
				point: "exeCopy", fails: "to copy all of it", happens: again, said: in(inEvent, "copy into memory: "), play: launches(pinned),
			},
			{
				point: "exeSeal", fails: "to seal the copy", happens: again, said: in(inEvent, "seal the copy: "), play: launches(pinned),
			},
		}},
	}
}
