package daemon

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/host/goplugin"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/pluginruntime"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// launch sets the plugins that the launcher runs, and does not wait for them: events and statuses have the results. A missing program does
// not affect other plugins.
func (d *Daemon) launch(runtime *pluginruntime.Runtime, c *catalogue.Catalogue) error {
	before := d.metadata.current.Swap(c) // before Set, because a plugin may ask for its metadata as soon as it runs
	switch err := runtime.Launcher().Set(toLaunch(c, &d.goPlugins)); {
	case errors.Is(err, launcher.ErrProgram):
		d.log.Warn("some plugins cannot be launched now", "error", err)
	case err != nil:
		d.metadata.current.Store(before)
		return err
	}
	return nil
}

func toLaunch(c *catalogue.Catalogue, connections *goplugin.Connections) []launcher.Plugin {
	var plugins []launcher.Plugin
	for _, p := range c.List() {
		env := []string{} // not nil, so that nothing is inherited
		for _, key := range slices.Sorted(maps.Keys(p.Env)) {
			env = append(env, key+"="+p.Env[key])
		}
		dir := p.Dir
		if dir == "" {
			dir = "/"
		}
		plugins = append(plugins, launcher.Plugin{
			Spec: host.Spec{
				Name: p.Name, Args: p.Command, Env: env, Dir: dir, Survive: p.Survive,
				SHA256: p.SHA256, Interpreter: p.Interpreter, User: p.User, Group: p.Group, NoNewPrivs: true, StopTimeout: p.StopTimeout,
				Limits: plugin.Limits{
					Memory: int64(p.Limits.Memory), CPU: int64(p.Limits.CPU), Processes: p.Limits.Processes, OpenFiles: p.Limits.OpenFiles,
				},
			},
			NoSocket:     !p.Serve,
			Protocol:     protocolOf(p, connections),
			Manual:       !p.Autostart,
			OnDemand:     p.Start == catalogue.StartOnDemand,
			Idle:         p.Idle,
			Announce:     plugin.Info{Type: p.Announce.Type, Name: p.Announce.Name, Versions: p.Announce.Versions},
			Restart:      p.Restart,
			Health:       p.Health,
			Upgrade:      p.Upgrade,
			StartTimeout: p.StartTimeout,
			LogRate:      p.LogRate,
		})
	}
	return plugins
}

// protocolOf returns the launch protocol of a go-plugin plugin; nil for other plugins.
func protocolOf(p catalogue.Plugin, connections *goplugin.Connections) launcher.Protocol {
	if p.Protocol != catalogue.ProtocolGoPlugin {
		return nil
	}
	library := goplugin.NewConfig(p.GoPlugin.CookieKey, p.GoPlugin.CookieValue)
	library.AutoMTLS = p.GoPlugin.AutoMTLS
	return &goplugin.Protocol{
		Type: p.Type, Name: cmp.Or(p.GoPlugin.Plugin, p.Name), ProtocolVersions: p.GoPlugin.ProtocolVersions, Connections: connections,
		Config: library,
	}
}

// metadata provides the metadata of launched plugins. It is a [plugin.Repository] whose package names are names in the catalogue.
type metadata struct {
	current atomic.Pointer[catalogue.Catalogue]
}

// Metadata returns the metadata of a plugin of the catalogue.
func (m *metadata) Metadata(name string) map[string]string {
	p, _ := m.current.Load().Lookup(name)
	return p.Metadata
}

// ListMetadata implements [plugin.Repository]. A page token is the number of entries before it.
func (m *metadata) ListMetadata(_ context.Context, pin plugin.Pin, keys []string, page plugin.Page) ([]plugin.Metadata, string, error) {
	p, _ := m.current.Load().Lookup(pin.PackageName) // a plugin that is not in the catalogue has no metadata
	var entries []plugin.Metadata
	for _, key := range slices.Sorted(maps.Keys(p.Metadata)) {
		if len(keys) > 0 && !slices.Contains(keys, key) {
			continue
		}
		value := p.Metadata[key]
		digest := sha256.Sum256([]byte(key + ":" + value))
		entries = append(entries, plugin.Metadata{
			Key: key, Value: []byte(value), ContentType: "text/plain", Fingerprint: hex.EncodeToString(digest[:]),
		})
	}
	begin := 0
	if page.Token != "" {
		var err error
		if begin, err = strconv.Atoi(page.Token); err != nil || begin < 0 || begin > len(entries) {
			return nil, "", fmt.Errorf("page token %q is not valid: use one from an earlier answer", page.Token)
		}
	}
	end := len(entries)
	if page.Size > 0 {
		end = min(begin+page.Size, end)
	}
	next := ""
	if end < len(entries) {
		next = strconv.Itoa(end)
	}
	return entries[begin:end], next, nil
}

// admission returns a function that makes the admission plugin; nil if none is configured.
func admission(c config.Admission, log *slog.Logger) func(*host.Host) (plugin.AdmissionPlugin, error) {
	if len(c.Command) == 0 {
		return nil
	}
	spec := host.Spec{Args: c.Command, Protocol: host.Protocol(c.Protocol)}
	return func(h *host.Host) (plugin.AdmissionPlugin, error) {
		return host.NewAdmission(host.WithLogger(context.Background(), log), h, spec, c.Timeout), nil
	}
}
