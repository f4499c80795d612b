package verify

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Rule is one requirement for a plugin.
type Rule struct {
	// ID is the stable identifier: three letters that name the family, and three digits.
	ID string `json:"rule"`
	// Title says in one line what is true of a plugin that passes.
	Title string `json:"title"`
	// Why says what goes wrong with hosts otherwise.
	Why string `json:"why"`
	// Remedy says what to change in the plugin.
	Remedy string `json:"remedy"`
	// Source says which specification requires it; empty if it comes from experience with hosts and plugins.
	Source string `json:"source,omitempty"`
	// Type is the only plugin type to which the rule applies; empty for all.
	Type string `json:"type,omitempty"`
	// Command means that the rule stops, refuses or starts the plugin and so needs [Target].Command.
	Command bool `json:"command"`

	check func(ctx context.Context, s *subject) outcome
}

func (r Rule) family() string { return r.ID[:3] }

type outcome struct {
	status Status
	reason string
	remedy string // instead of the rule's
}

func pass(format string, args ...any) outcome {
	return outcome{status: Passed, reason: fmt.Sprintf(format, args...)}
}

func fail(format string, args ...any) outcome {
	return outcome{status: Failed, reason: fmt.Sprintf(format, args...)}
}

func warn(format string, args ...any) outcome {
	return outcome{status: Warned, reason: fmt.Sprintf(format, args...)}
}

func notApplicable(format string, args ...any) outcome {
	return outcome{status: NotApplicable, reason: fmt.Sprintf(format, args...)}
}

// Rules returns all rules in the order in which they are checked.
func Rules() []Rule { return slices.Clone(rules) }

// selectRules returns the rules that only names, without those that skip names, by identifier or family.
func selectRules(only, skip []string) ([]Rule, error) {
	rules := Rules()
	for _, name := range slices.Concat(only, skip) {
		if !slices.ContainsFunc(rules, func(r Rule) bool { return r.named(name) }) {
			return nil, fmt.Errorf("there is no rule or family %q; name an identifier such as REG001 or a family such as REG", name)
		}
	}
	in := func(names []string, r Rule) bool { return slices.ContainsFunc(names, r.named) }
	rules = slices.DeleteFunc(rules, func(r Rule) bool { return len(only) > 0 && !in(only, r) || in(skip, r) })
	if len(rules) == 0 {
		return nil, fmt.Errorf("no rule is left to check; name others, or skip fewer")
	}
	return rules, nil
}

func (r Rule) named(name string) bool {
	return strings.EqualFold(name, r.ID) || strings.EqualFold(name, r.family())
}

// rules is what is checked, in this order: the refusal may end the plugin, and the process rules do, so they are last.
var rules = slices.Concat(firstRules, csiRules, deviceRules, draRules, lastRules)

var firstRules = []Rule{
	{
		ID: "ENV001", Title: "No other host watches the plugin directory",
		Why: "A host that watches the directory registers the plugin too, so during the verification the plugin is called by both, and the " +
			"other host reacts to every stop and start.",
		Remedy: "verify in a separate directory: give a command instead of a socket, or another --dir; or stop the other host meanwhile",
		check:  checkAlone,
	},
	{
		ID: "PRC001", Title: "The command creates a registration socket in time", Command: true,
		Why: "Nothing finds a plugin without a socket.",
		Remedy: "serve the registration service at the path in {socket} or PATCHBAY_SOCKET, or under any name in {dir} or " +
			"PATCHBAY_PLUGIN_DIR; if the plugin needs longer, set --start-timeout",
		check: checkStart,
	},
	{
		ID: "PRC002", Title: "The socket accepts connections as soon as it appears", Command: true,
		Why: "A host connects as soon as the socket appears. One that is bound but not yet listening refuses the connection, and the next " +
			"attempt may come seconds later.",
		Remedy: "do nothing between bind and listen; better still, bind and listen under a hidden name in the same directory, and rename the " +
			"socket into place",
		check: checkAppearance,
	},
	{
		ID: "REG001", Title: "The socket is where hosts look, and they can connect to it",
		Why: "Hosts look for sockets in their plugin directory and below it. They ignore names that begin with a dot, do not follow " +
			"symbolic links, and, if they connect by path, cannot reach one longer than 107 bytes.",
		Remedy: "listen on a stream socket with a visible name directly in the plugin directory",
		check:  checkPlace,
	},
	{
		ID: "REG002", Title: "Not everyone may connect to the socket",
		Why: "Anyone who can connect can tell the plugin that it is registered, and call its services.",
		Remedy: "create the socket with mode 0600 or 0660: set the umask before bind, or bind in a private directory, change the mode there " +
			"and rename the socket into place",
		check: ofSocket(checkMode),
	},
	{
		ID: "REG003", Title: "The socket belongs to root or to the host's user",
		Why:    "Another user's socket may belong to an impostor; hosts refuse it by default.",
		Remedy: "run the plugin as root or as the host's user; this verification assumes that the host runs as its own user",
		check:  ofSocket(checkOwner),
	},
	{
		ID: "REG004", Title: "Not everyone may write to the plugin directory",
		Why:    "Anyone who may write there can replace the plugin's socket; hosts refuse such a directory.",
		Remedy: "chmod o-w the directory; the usual mode is 0750",
		check:  checkDirectory,
	},
	{
		ID: "REG005", Title: "GetInfo answers in time",
		Why:    "GetInfo tells a host who the plugin is; the kubelet waits one second for it.",
		Remedy: "serve pluginregistration.Registration on the socket, and answer from memory: do slow work before creating the socket",
		check:  checkGetInfo,
	},
	{
		ID: "REG006", Title: "The type is one for which a host can have a handler",
		Why:    "Hosts choose the handler by the type; in TYPE/NAME the type ends at the first slash.",
		Remedy: "set PluginInfo.type, for example to CSIPlugin, DevicePlugin, DRAPlugin or the type that your host handles",
		check:  answering(checkType),
	},
	{
		ID: "REG007", Title: "The name is valid for the type",
		Why: "Hosts refuse other names: CSI requires a domain name of at most 63 characters, device plugins the name of an extended resource, " +
			"DRA a lower-case DNS subdomain of at most 63 characters.",
		Remedy: "set PluginInfo.name accordingly, for example hostpath.csi.k8s.io, example.com/gpu or gpu.example.com",
		check:  answering(checkName),
	},
	{
		ID: "REG008", Title: "The versions are ones that hosts of the type support",
		Why: "Hosts use a version that both sides support: CSI 1.x, v1beta1 for device plugins, the names of the services for DRA. What is " +
			"not listed is not used.",
		Remedy: "set PluginInfo.supported_versions: for example 1.9.0 for CSI, v1beta1 for device plugins, v1.DRAPlugin for DRA",
		check:  answering(checkVersions),
	},
	{
		ID: "REG009", Title: "GetInfo repeats its answer",
		Why:    "Hosts ask again after each restart, and treat a different answer as a different plugin.",
		Remedy: "return the same PluginInfo for as long as the socket exists",
		check:  answering(checkGetInfoAgain),
	},
	{
		ID: "REG010", Title: "The endpoint is reachable",
		Why: "Hosts call the plugin's services there. They run in other directories, so a relative path leads elsewhere.",
		Remedy: "set PluginInfo.endpoint to the absolute path of a socket that accepts connections before the registration socket is created, " +
			"or leave it empty",
		check: answering(checkEndpoint),
	},
	{
		ID: "SVC001", Title: "The health service, if there is one, reports SERVING",
		Why:    "Hosts that find grpc.health.v1 on the endpoint trust it, and restart or skip a plugin that is unhealthy.",
		Remedy: "set the status of the service \"\" to SERVING when the plugin is ready, before it creates its registration socket",
		check:  onEndpoint(checkHealth),
	},
	{
		ID: "SVC002", Title: "Reflection, if there is any, shows a service of the plugin",
		Why:    "A plugin whose endpoint serves nothing but registration is registered and useless.",
		Remedy: "register the plugin's own services on the server at the endpoint before reflection, or announce the endpoint that has them",
		check:  onEndpoint(checkReflection),
	},
}

var lastRules = []Rule{
	{
		ID: "CON001", Title: "Many connections at once are served",
		Why:    "Hosts, registries and probes each open connections; to a caller whose connection is not served, the plugin looks dead.",
		Remedy: "serve connections concurrently, with no limit below 64 and a backlog to match",
		check:  answering(checkCrowd),
	},
	{
		ID: "CON002", Title: "Silent connections do not block others",
		Why:    "Probes connect and send nothing; a plugin that reads from a connection before it accepts the next one hangs with them.",
		Remedy: "do the HTTP/2 handshake of each connection concurrently, and give it a deadline",
		check:  answering(checkSilence),
	},
	{
		ID: "CON003", Title: "A peer that reads nothing does not block others",
		Why:    "A stopped consumer leaves its window full; a plugin that waits for it under a lock hangs for everybody else.",
		Remedy: "hold no lock while sending a message, and let streams end with their contexts",
		check:  answering(checkSlowReader),
	},
	{
		ID: "CON004", Title: "A peer that does not speak gRPC does no harm",
		Why:    "Anything may connect to a socket; the plugin must outlive it.",
		Remedy: "let an error on a connection end only that connection",
		check:  answering(checkGarbage),
	},
	{
		ID: "REG011", Title: "The status \"registered\" is accepted twice",
		Why:    "Hosts send it after each of their restarts. One that gets an error takes the plugin out of service and tries again.",
		Remedy: "implement NotifyRegistrationStatus so that it answers at once, also when nothing is new",
		check:  answering(checkTold),
	},
	{
		ID: "REG012", Title: "The plugin survives a restart of its host",
		Why:    "The host's connection breaks, and then the host connects, asks and notifies again.",
		Remedy: "keep no state per connection, and treat the loss of a connection as normal",
		check:  answering(checkHostRestart),
	},
	{
		ID: "REG013", Title: "The plugin survives a refusal, or exits cleanly", Command: true,
		Why: "A host that refuses the plugin today may accept it tomorrow. A plugin that hangs is never accepted, and one that exits and " +
			"leaves its socket looks dead until somebody starts it again.",
		Remedy: "on plugin_registered=false, log the error and keep serving; or remove the socket and exit, and let a supervisor restart it",
		check:  answering(checkRefusal),
	},
	{
		ID: "PRC003", Title: "SIGTERM ends the plugin in time", Command: true,
		Why:    "Supervisors send SIGTERM and kill what does not stop; a killed plugin cannot finish calls or clean up.",
		Remedy: "on SIGTERM, remove the socket, let calls finish for a bounded time, and exit with status 0",
		check:  checkTerminate,
	},
	{
		ID: "PRC004", Title: "SIGTERM removes the socket", Command: true,
		Why:    "A socket on which nobody accepts looks like a plugin that hangs, and hosts retry it again and again.",
		Remedy: "remove the socket before the server stops; in Go, close the listener on SIGTERM instead of letting the signal end the process",
		check:  checkSocketRemoved,
	},
	{
		ID: "PRC005", Title: "Nothing else is left in the plugin directory", Command: true,
		Why:    "Hosts search the plugin directory; whatever is left there is searched, tried and reported forever.",
		Remedy: "remove the sockets that the plugin created, and keep other files elsewhere",
		check:  checkNothingLeft,
	},
	{
		ID: "PRC006", Title: "The plugin starts although a killed one left its socket", Command: true,
		Why:    "A crash leaves the socket. A plugin that cannot bind then stays down until somebody removes it by hand.",
		Remedy: "before bind, remove a socket at the path if nobody accepts on it",
		check:  checkStale,
	},
	{
		ID: "PRC007", Title: "A second instance does no harm", Command: true,
		Why: "During an upgrade two instances overlap. If the older one removes the path when it ends, it removes the newer one's socket, " +
			"and hosts lose a plugin that still runs.",
		Remedy: "let the second instance exit with an error and leave the first alone; or let it take over the path, and let each remove the " +
			"socket only if it is still the one that it created (the same inode)",
		check: checkSecond,
	},
}
