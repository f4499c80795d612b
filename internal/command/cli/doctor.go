package cli

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/daemon"
	"github.com/patchbay-dev/patchbay/fleet"
	"github.com/patchbay-dev/patchbay/internal/command/config"
	"github.com/patchbay-dev/patchbay/internal/command/doctor"
	"github.com/patchbay-dev/patchbay/trust"
)

// doctorTimeout bounds the whole examination. Only many sockets whose owners hang take long.
const doctorTimeout = time.Minute

// errUnwell ends a doctor command that found something that does not work.
var errUnwell = errors.New("something does not work: see the lines marked fail")

func newDoctorCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what is wrong on this machine.",
		Long: `Ask the daemon at the control socket where it works, what is wrong with it, and which plugins are failed, refused or unreachable,
or were refused last and are gone. Then look at what it depends on: the configuration that "patchbay run" would have, the plugin
directories and the sockets in them, the state file and the space for it, the control socket, other daemons, the programs of the catalogue,
etcd where there is a fleet, limits, kernel features and the clock. Where no daemon can be asked, a finding says so, and the directories
and files are those of the configuration.
Each finding is ok, warn or fail, and says what to do. Nothing is changed.

Run it as the daemon's user. The exit code is 1 if a finding is fail.`,
		Example: `  patchbay doctor

  # What has to be done?
  patchbay doctor -o json | jq -r '.[] | select(.status != "ok") | .remedy'`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := addConfigFlags(cmd, paths)
	output := addChoice(cmd, "output", "o", "output format", "table", "json", "yaml")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), doctorTimeout)
		defer cancel()
		sources, err := flags.sources(cmd)
		if err != nil {
			return err
		}
		findings := examine(ctx, sources)
		switch output.value {
		case "json":
			err = writeJSON(cmd.OutOrStdout(), findings)
		case "yaml":
			err = writeYAML(cmd.OutOrStdout(), findings)
		default:
			err = writeFindings(cmd.OutOrStdout(), findings)
		}
		if err == nil && doctor.Worst(findings) == doctor.Fail {
			err = errUnwell
		}
		return err
	}
	return cmd
}

// examine looks at the configuration, asks the daemon, and then looks at the machine: where the daemon works or, if it cannot be asked,
// with what the configuration says, or with the defaults if that cannot be read.
func examine(ctx context.Context, sources config.Sources) []doctor.Finding {
	finding := doctor.Finding{Check: "configuration", Status: doctor.OK, Message: "the configuration can be used"}
	loaded, c, err := load(sources)
	if err != nil {
		finding.Status, finding.Message = doctor.Fail, err.Error()
		finding.Remedy = `correct it; "patchbay config check" shows all that is wrong`
	}
	if loaded == nil {
		c = daemon.Config{
			PluginDirs: sources.Defaults.PluginDirs, StatePath: sources.Defaults.State, ControlSocket: sources.Defaults.ControlSocket,
		}
	}
	asked := client.New(c.ControlSocket)
	defer asked.Close()
	running, findings := askDaemon(ctx, asked, loaded, c)
	if running != nil {
		c.PluginDirs, c.DeprecatedPluginDir, c.StatePath = running.PluginDirs, running.DeprecatedPluginDir, running.State
	}
	dirs := c.PluginDirs
	if c.DeprecatedPluginDir != "" {
		dirs = append(dirs[:len(dirs):len(dirs)], c.DeprecatedPluginDir)
	}
	subject := doctor.Subject{PluginDirs: dirs, StatePath: c.StatePath, ControlSocket: c.ControlSocket}
	// The directories of launched plugins that run as somebody else are theirs.
	policy := c.Trust
	for _, p := range c.Catalogue.List() {
		if p.User != "" {
			policy.Owners.Users = append(slices.Clip(policy.Owners.Users), p.User)
		}
	}
	if subject.Trust, err = trust.New(policy); err != nil {
		finding.Status, finding.Message = doctor.Fail, err.Error()
		finding.Remedy = "correct the names in trust and in the users of the plugins"
	}
	subject.Daemon = func(ctx context.Context) (int, error) {
		v, err := asked.Version(ctx)
		return v.PID, err
	}
	for _, p := range c.Catalogue.List() {
		subject.Programs = append(subject.Programs, doctor.Program{Plugin: p.Name, Path: p.Command[0], SHA256: p.SHA256})
	}
	if len(c.Fleet.Etcd.Endpoints) > 0 {
		subject.Fleet = func(ctx context.Context) []doctor.Member { return membersOf(ctx, c.Fleet) }
	}
	return slices.Concat([]doctor.Finding{finding}, findings, doctor.Examine(ctx, subject))
}

// etcdTimeout bounds how long etcd may take to answer. Where it takes longer, the fleet is of no use to anybody who waits.
const etcdTimeout = 3 * time.Second

// membersOf tries the members of etcd. Files that cannot be used are the fault of all.
func membersOf(ctx context.Context, c daemon.FleetConfig) []doctor.Member {
	etcd := c.Etcd
	etcd.Timeout = etcdTimeout
	cluster, err := fleet.Connect(etcd)
	if err != nil {
		return []doctor.Member{{Endpoint: strings.Join(etcd.Endpoints, ", "), Err: err}}
	}
	found := cluster.Check(ctx, c.Space)
	members := make([]doctor.Member, len(found))
	for i, m := range found {
		members[i] = doctor.Member(m)
	}
	return members
}

func writeFindings(w io.Writer, findings []doctor.Finding) error {
	list := &table{terminal: terminalOf(w), cut: noCut}
	for _, f := range findings {
		row := plainRow(string(f.Status), f.Check, escape(f.Message))
		row[0].is = map[doctor.Status]tone{doctor.OK: good, doctor.Warn: busy, doctor.Fail: bad}[f.Status]
		list.add(row...)
		if f.Remedy != "" {
			list.add(plainRow("", "", "→ "+escape(f.Remedy))...)
		}
	}
	return list.write(w)
}
