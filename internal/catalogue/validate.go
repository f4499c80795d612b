package catalogue

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// The syntax of two fields, as regular expressions that are valid in JSON Schema, too.
const (
	// NamePattern matches the names of plugins. Such a name is safe as a file name, and short enough for the path of a socket.
	NamePattern = `^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`
	// SHA256Pattern matches the digests of programs.
	SHA256Pattern = `^[0-9A-Fa-f]{64}$`
)

var (
	nameText   = regexp.MustCompile(NamePattern)
	sha256Text = regexp.MustCompile(SHA256Pattern)
)

// minCheck is the shortest interval and timeout of health checks, which would otherwise keep a plugin busy.
const minCheck = 10 * time.Millisecond

// FieldError is the error of an invalid field of a plugin.
type FieldError struct {
	// Index is the index of the plugin in the list. Name is its name, which may be invalid.
	Index int
	Name  string
	// Field is the path of the field below the plugin, as in the configuration: "sha256" or "restart.limit".
	Field string
	Err   error
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("plugins[%d].%s: %v", e.Index, e.Field, e.Err)
}

func (e *FieldError) Unwrap() error { return e.Err }

// problems returns a FieldError for each problem of the plugin at an index, in the order of the fields.
func (p *Plugin) problems(index int) []error {
	var found []error
	check := func(ok bool, field, format string, args ...any) {
		if !ok {
			found = append(found, &FieldError{index, p.Name, field, fmt.Errorf(format, args...)})
		}
	}
	check(nameText.MatchString(p.Name), "name", "%q is not a valid name of a plugin: it must have 1 to 63 letters, digits, dots, dashes and "+
		"underscores, and begin and end with a letter or digit", p.Name)
	check(untrusted.Printable(p.Version), "version", "%q must have printable characters only", p.Version)
	if err := checkCommand(p.Command); err != nil {
		found = append(found, &FieldError{index, p.Name, "command", err})
	}
	check(p.SHA256 == "" || sha256Text.MatchString(p.SHA256), "sha256",
		"%q is not a SHA-256 digest: it must have 64 hexadecimal digits", p.SHA256)
	check(p.Interpreter == "" || filepath.IsAbs(p.Interpreter) && !strings.ContainsAny(p.Interpreter, "\x00 \t\n"), "interpreter",
		"%q must be an absolute path without spaces", p.Interpreter)
	for _, key := range slices.Sorted(maps.Keys(p.Metadata)) {
		check(key != "" && untrusted.Printable(key), "metadata", "the key %q must have printable characters only, and at least one", key)
	}
	for _, key := range slices.Sorted(maps.Keys(p.Env)) {
		check(key != "" && !strings.ContainsAny(key, "=\x00"), "env", "%q is not a variable name: it must not be empty or have = in it", key)
		check(!strings.Contains(p.Env[key], "\x00"), "env."+key, "the value has a NUL character")
	}
	check(p.Dir == "" || filepath.IsAbs(p.Dir) && !strings.Contains(p.Dir, "\x00"), "dir", "%q must be an absolute path", p.Dir)
	p.checkProtocol(check)
	check(p.Limits.Memory >= 0, "limits.memory", "it must be above zero")
	check(p.Limits.CPU >= 0, "limits.cpu", "it must be above zero")
	check(p.Limits.Processes >= 0, "limits.processes", "it must be above zero")
	check(p.Limits.OpenFiles >= 0, "limits.openFiles", "it must be above zero")
	check(untrusted.Printable(p.User), "user", "%q must have printable characters only", p.User)
	check(untrusted.Printable(p.Group), "group", "%q must have printable characters only", p.Group)
	r := p.Restart
	policies := []plugin.Restart{plugin.RestartOnFailure, plugin.RestartAlways, plugin.RestartNever}
	check(slices.Contains(policies, r.Policy), "restart.policy",
		"%q must be one of %s, %s, %s", r.Policy, policies[0], policies[1], policies[2])
	check(r.Backoff.Min > 0, "restart.backoff.min", "it must be above zero")
	check(r.Backoff.Max >= r.Backoff.Min, "restart.backoff.max", "%v must not be shorter than min, which is %v", r.Backoff.Max, r.Backoff.Min)
	check(r.Limit > 0, "restart.limit", "it must be above zero")
	check(r.Window > 0, "restart.window", "it must be above zero")
	check(p.Health.Interval >= minCheck, "health.interval", "it must not be shorter than %v", minCheck)
	check(p.Health.Timeout >= minCheck, "health.timeout", "it must not be shorter than %v", minCheck)
	check(p.Health.Misses > 0, "health.misses", "it must be above zero")
	p.checkStart(check)
	check(p.StartTimeout > 0, "startTimeout", "it must be above zero")
	check(p.StopTimeout > 0, "stopTimeout", "it must be above zero")
	check(p.LogRate >= 0, "logRate", "it must be above zero")
	return found
}

func (p *Plugin) checkStart(check func(ok bool, field, format string, args ...any)) {
	upgrades := []plugin.Upgrade{plugin.UpgradeSideBySide, plugin.UpgradeHandover, plugin.UpgradeRecreate}
	check(slices.Contains(upgrades, p.Upgrade), "upgrade", "%q must be one of %s, %s, %s", p.Upgrade, upgrades[0], upgrades[1], upgrades[2])
	check(p.Upgrade != plugin.UpgradeHandover || p.Serve, "upgrade", "a plugin that does not serve has no socket to hand over")
	check(p.Upgrade != plugin.UpgradeHandover || !p.Survive, "survive", "a plugin with upgrade: handover cannot: the daemon answers for it")
	check(p.Start == StartAuto || p.Start == StartOnDemand, "start", "%q must be one of %s, %s", p.Start, StartAuto, StartOnDemand)
	check(p.Idle > 0, "idle", "it must be above zero")
	a := p.Announce
	if p.Start != StartOnDemand {
		check(!a.isSet(), "announce", "it is for start: onDemand only")
		return
	}
	check(p.Serve, "serve", "a plugin with start: onDemand must serve, so that somebody can call it")
	check(!p.Survive, "survive", "a plugin with start: onDemand cannot: the daemon answers for it")
	check(!a.isSet() || p.Protocol == ProtocolPatchbay, "announce", "what a go-plugin plugin is registered as is in type and goPlugin")
	check(!a.isSet() || untrusted.IsType(a.Type), "announce.type", "%q %s", a.Type, untrusted.TypeSyntax)
	if a.isSet() {
		check(untrusted.Printable(a.Name) && a.Name != "", "announce.name", "%q must have printable characters, at least one", a.Name)
		check(len(a.Versions) > 0, "announce.versions", "it must name at least one")
	}
	for i, v := range a.Versions {
		check(untrusted.Printable(v) && v != "", fmt.Sprintf("announce.versions[%d]", i), "%q must have printable characters, at least one", v)
	}
}

func checkCommand(command []string) error {
	if len(command) == 0 || command[0] == "" {
		return errors.New("it names no program")
	}
	if program := command[0]; !filepath.IsAbs(program) && strings.ContainsAny(program, `/\`) {
		return fmt.Errorf("%q must be an absolute path, or a name without slashes that is looked up in PATH", program)
	}
	for _, arg := range command {
		if strings.Contains(arg, "\x00") {
			return fmt.Errorf("the argument %q has a NUL character", arg)
		}
	}
	return nil
}
