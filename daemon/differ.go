package daemon

import (
	"maps"
	"slices"

	"github.com/patchbay-dev/patchbay/catalogue"
)

// differences returns the keys of the configuration file, in order, whose values differ: those to which a running daemon can change, and
// those that need a restart.
func differences(before, after Config) (changed, restart []string) {
	for _, part := range []struct {
		key    string
		differ bool
	}{
		{"pluginDirs", !slices.Equal(before.PluginDirs, after.PluginDirs)},
		{"deprecatedPluginDir", before.DeprecatedPluginDir != after.DeprecatedPluginDir},
		{"state", before.StatePath != after.StatePath},
		{"controlSocket", before.ControlSocket != after.ControlSocket},
		{"dispenseDir", before.DispenseDir != after.DispenseDir},
		{"device", before.DeviceSocketDir != after.DeviceSocketDir},
		{"http", before.HTTPAddr != after.HTTPAddr},
		{"unhandled", before.IgnoreUnhandled != after.IgnoreUnhandled},
		{"bounds", before.Bounds != after.Bounds || before.MaxDepth != after.MaxDepth || before.MaxSockets != after.MaxSockets},
		{"trust", !before.Trust.Equal(after.Trust)},
		{"admission", !slices.Equal(before.Admission.Args, after.Admission.Args) ||
			before.Admission.Protocol != after.Admission.Protocol || before.Admission.Timeout != after.Admission.Timeout},
		{"tracing", before.Tracing != after.Tracing},
		{"fleet", !before.Fleet.equal(after.Fleet)},
		{"unreachableGrace", before.UnreachableGrace != after.UnreachableGrace},
	} {
		if part.differ {
			restart = append(restart, part.key)
		}
	}
	changed = append([]string{}, mapChanges("handlers.", before.Handlers, after.Handlers)...) // never null in JSON
	if !before.Roles.equal(after.Roles) {
		changed = append(changed, "control.roles")
	}
	if !slices.EqualFunc(before.Fleet.Serve.Allow, after.Fleet.Serve.Allow, FleetAllow.equal) {
		changed = append(changed, "fleet.serve.allow")
	}
	if before.Log.Level != after.Log.Level {
		changed = append(changed, "log.level")
	}
	if before.Log.Format != after.Log.Format {
		changed = append(changed, "log.format")
	}
	if before.Timeouts != after.Timeouts {
		changed = append(changed, "timeouts")
	}
	changed = append(changed, mapChanges("typeTimeouts.", before.TypeTimeouts, after.TypeTimeouts)...)
	changed = append(changed, mapChanges("clientTimeouts.", before.ClientTimeouts, after.ClientTimeouts)...)
	return append(changed, catalogueChanges(before, after)...), restart
}

// mapChanges returns the keys that only one of two maps has, or with another value, each behind a prefix.
func mapChanges[V comparable](prefix string, before, after map[string]V) []string {
	differ := map[string]bool{}
	for key, was := range before {
		if is, has := after[key]; !has || is != was {
			differ[prefix+key] = true
		}
	}
	for key := range after {
		if _, had := before[key]; !had {
			differ[prefix+key] = true
		}
	}
	return slices.Sorted(maps.Keys(differ))
}

func catalogueChanges(before, after Config) []string {
	changes := catalogue.Diff(before.Catalogue, after.Catalogue)
	var keys []string
	for _, p := range slices.Concat(changes.Added, changes.Removed, changes.Changed) {
		keys = append(keys, "plugins."+p.Name)
	}
	slices.Sort(keys)
	return keys
}
