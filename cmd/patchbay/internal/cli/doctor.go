package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/doctor"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
)

// doctorTimeout bounds all checks. They take long only if the owners of many sockets hang.
const doctorTimeout = time.Minute

// errFailed is the error of a doctor command with a failed check.
var errFailed = errors.New("some checks failed: see the lines marked fail")

func newDoctorCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find problems of this machine and the daemon",
		Long: `Ask the daemon at the control socket for its paths, its problems, and the plugins that are failed, refused or unreachable, or were
recently refused and are gone. Then check what it depends on: the configuration, the plugin directories and their sockets, the state file
and its disk space, the control socket, other daemons, the programs of the catalogue, etcd if there is a fleet, limits, kernel features and
the clock. If no daemon answers, a finding says so, and the paths are taken from the configuration.

Each finding is ok, warn or fail, and says what to do. Nothing is changed.

Run it as the daemon's user. The exit code is 1 if a finding is fail: also if a control socket exists and no daemon answers there.`,
		Example: `  patchbay doctor

  # Print only the remedies.
  patchbay doctor -o json | jq -r '.[] | select(.status != "ok") | .remedy'`,
	}
	flags := command.AddConfigFlags(cmd, paths)
	output := command.AddOutput(cmd, "table")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), doctorTimeout)
		defer cancel()
		sources, err := flags.Sources(cmd)
		if err != nil {
			return err
		}
		findings := examine(ctx, sources)
		err = output.Print(cmd, findings, func(w io.Writer) error { return writeFindings(w, findings) })
		if err == nil && slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Status == doctor.Fail }) {
			err = errFailed
		}
		return err
	}
	return cmd
}

// examine checks the configuration, the daemon and the machine. The paths are those of the running daemon; if it does not answer, of the
// configuration; if that cannot be read, of the flags, the environment and the defaults.
func examine(ctx context.Context, sources config.Sources) []doctor.Finding {
	c, err := command.Load(sources)
	first := configurationFindings(c, err)
	if c == nil || c.Catalogue == nil {
		c = command.WithoutFiles(sources)
	}
	asked := client.New(c.ControlSocket)
	defer asked.Close()
	running, findings := askDaemon(ctx, asked, c)
	if running != nil {
		var unread []doctor.Finding
		c, unread = inForce(running, sources.Defaults, c)
		findings = append(findings, unread...)
	}
	subject := doctor.Subject{PluginDirs: c.AllPluginDirs(), StatePath: c.State, ControlSocket: c.ControlSocket}
	policy := c.Trust.Policy()
	policy.Owners.Users = slices.Clone(policy.Owners.Users)
	subject.Plugins = c.Catalogue.List()
	for _, p := range subject.Plugins {
		if p.User != "" { // launched plugins own their directories
			policy.Owners.Users = append(policy.Owners.Users, p.User)
		}
	}
	if subject.Trust, err = trustjudge.New(policy); err != nil {
		first = append(first, finding("configuration", doctor.Fail, oneLine(err), "correct the names in trust and in the users of the plugins"))
	}
	subject.Daemon = func(ctx context.Context) (int, error) {
		v, err := asked.Version(ctx)
		return int(v.GetPid()), err
	}
	if len(c.Fleet.Etcd.Endpoints) > 0 {
		subject.Fleet = func(ctx context.Context) []fleet.Member { return membersOf(ctx, c.Fleet.Etcd) }
	}
	return slices.Concat(first, findings, doctor.Examine(ctx, subject))
}

// configurationFindings returns the findings for a configuration that was loaded with err.
func configurationFindings(c *config.Loaded, err error) []doctor.Finding {
	if err != nil {
		return command.Each(strings.Split(err.Error(), "\n"), func(wrong string) doctor.Finding {
			return finding("configuration", doctor.Fail, wrong, `correct it; "patchbay config check" shows all errors`)
		})
	}
	if warning := daemon.Warn(&c.Config); warning != "" {
		return []doctor.Finding{
			finding("configuration", doctor.Warn, warning, "name the types in trust.types, or set admission.launchedOnly"),
		}
	}
	return []doctor.Finding{finding("configuration", doctor.OK, "the configuration is valid", "")}
}

// inForce returns the configuration of the running daemon. If it cannot be parsed, only the paths are those of the daemon.
func inForce(running *patchbayv1.GetConfigurationResponse, defaults config.Config, c *config.Loaded) (*config.Loaded, []doctor.Finding) {
	var unread []doctor.Finding
	socket := c.ControlSocket
	if running.Effective != "" {
		parsed, err := config.Parse("the daemon's configuration", []byte(running.Effective), defaults)
		if err == nil {
			c = parsed
		} else {
			unread = append(unread, finding("daemon", doctor.Warn, "the daemon's configuration cannot be read, and its plugins, trust and fleet "+
				"are taken from the configuration here: "+oneLine(err), "run the doctor of the daemon's own version"))
		}
	}
	c.PluginDirs, c.DeprecatedPluginDir, c.State = running.PluginDirs, running.DeprecatedPluginDir, running.State
	c.ControlSocket = socket
	return c, unread
}

// etcdTimeout bounds how long etcd may take to answer. A slower etcd makes the fleet unusable.
const etcdTimeout = 3 * time.Second

// membersOf checks the members of etcd. An error in the configuration is returned as one member with all endpoints.
func membersOf(ctx context.Context, c config.Etcd) []fleet.Member {
	etcd := fleet.Etcd(c)
	etcd.Timeout = etcdTimeout
	cluster, err := fleet.Connect(etcd)
	if err != nil {
		return []fleet.Member{{Endpoint: strings.Join(etcd.Endpoints, ", "), Err: err}}
	}
	return cluster.Check(ctx)
}

func writeFindings(w io.Writer, findings []doctor.Finding) error {
	list := &console.Table{Terminal: console.TerminalOf(w), Tones: console.Tones{0: console.ToneOf}}
	for _, f := range findings {
		list.Add(string(f.Status), f.Check, console.Escape(f.Message))
		if f.Remedy != "" {
			list.Add("", "", "→ "+console.Escape(f.Remedy))
		}
	}
	return list.Write(w)
}

// sickShown is how many plugins of each kind doctor shows.
const sickShown = 20

// askDaemon returns the configuration of the running daemon and findings for its conditions and plugins. If the daemon does not answer, the
// configuration is nil and a finding has the reason.
func askDaemon(ctx context.Context, asked *client.Client, c *config.Loaded) (*patchbayv1.GetConfigurationResponse, []doctor.Finding) {
	ctx, cancel := command.AnswerInTime(ctx)
	defer cancel()
	running, err := asked.Configuration(ctx)
	if err != nil {
		return nil, []doctor.Finding{finding("daemon", doctor.Warn, fmt.Sprintf(
			"no daemon answered at control socket %s (%s), so the other findings are about the configuration: %v", c.ControlSocket,
			c.Origin("controlSocket"), err),
			"start the daemon, or name its socket with --control-socket; then doctor checks its plugins too")}
	}
	findings := []doctor.Finding{finding("daemon", doctor.OK,
		fmt.Sprintf("the daemon answers; it uses plugin directories %q and state file %s", running.PluginDirs, running.State), "")}
	sick, err := askForPlugins(ctx, asked)
	if err != nil {
		sick = append(sick, finding("daemon", doctor.Fail, "the daemon could not be asked for its plugins: "+err.Error(),
			"look at its log; restart it if it hangs"))
	}
	return running, append(findings, sick...)
}

func finding(check string, status doctor.Status, message, remedy string) doctor.Finding {
	return doctor.Finding{Check: check, Status: status, Message: message, Remedy: remedy}
}

// askForPlugins returns findings for the degraded conditions and for the plugins that need attention.
func askForPlugins(ctx context.Context, asked *client.Client) ([]doctor.Finding, error) {
	all, err := askNeeds(ctx, asked)
	if err != nil {
		return nil, err
	}
	var findings []doctor.Finding
	for _, condition := range all.conditions {
		findings = append(findings, finding("conditions", doctor.Fail,
			condition.Name+" is "+condition.Status+": "+condition.Message,
			`fix it; the daemon notices that, and "patchbay events --follow" shows it`))
	}
	if len(all.needs) == 0 {
		return append(findings, finding("plugins", doctor.OK, fmt.Sprintf("%d plugins are known; none has a problem", all.plugins), "")), nil
	}
	shown := map[string]int{}
	for _, n := range all.needs {
		if shown[n.all]++; shown[n.all] > sickShown {
			continue
		}
		status := doctor.Warn
		if n.State == "failed" || n.State == "blocked" {
			status = doctor.Fail
		}
		findings = append(findings, finding("plugins", status, n.sentence(), n.Remedy))
	}
	for _, command := range slices.Sorted(maps.Keys(shown)) {
		if more := shown[command] - sickShown; more > 0 {
			findings = append(findings, finding("plugins", doctor.Warn,
				fmt.Sprintf("%d more of this kind", more), fmt.Sprintf("%q shows all", command)))
		}
	}
	return findings, nil
}
