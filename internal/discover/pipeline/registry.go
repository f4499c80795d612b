package pipeline

import (
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/keeper"
	"github.com/patchbay-dev/patchbay/internal/peerauth"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/plugin"
)

// ownOptions is the prefix of the keys with which a storage saves the pipeline's own data. Handlers cannot set such keys.
const ownOptions = "patchbay.dev/"

// RegistryOf returns a store as the reconciler's registry. Each instance has an entry for its type and one for each of its roles.
func RegistryOf(store *dynamicplugins.Store) reconciler.Registry {
	return registry{store, keeper.Of[*dynamicplugins.PluginInfo](store)}
}

type registry struct {
	store                                     *dynamicplugins.Store
	keeper.Keeper[*dynamicplugins.PluginInfo] // Reserve and SaveReservation are the registry's too
}

// Stage passes the entries of all instances to the storage in one call, so that it can save them together.
func (r registry) Stage(instances []plugin.Instance) []reconciler.Stage {
	stages := make([]reconciler.Stage, len(instances))
	ends := make([]int, len(instances)) // where the entries of each instance end
	entries := make([]*dynamicplugins.PluginInfo, 0, len(instances))
	for i, in := range instances {
		if stages[i].Err = r.dropRoles(in); stages[i].Err == nil {
			info := infoOf(in)
			entries = append(entries, info)
			for _, role := range info.Instance.Registration.Roles {
				entries = append(entries, roleOf(info, role))
			}
		}
		ends[i] = len(entries)
	}
	staged, errs := r.StagePlugins(entries)
	begin := 0
	for i, end := range ends {
		if stages[i].Err == nil {
			stages[i] = stageOf(staged[begin:end], errs[begin:end])
		}
		begin = end
	}
	return stages
}

func stageOf(roles stagedRoles, errs []error) reconciler.Stage {
	all := slices.DeleteFunc(roles, func(s keeper.Staged) bool { return s == nil })
	err := errors.Join(errs...)
	if err == nil {
		return reconciler.Stage{Staged: all}
	}
	if left := all.Discard(); left != nil {
		return reconciler.Stage{Staged: all, Err: errors.Join(err, left)}
	}
	return reconciler.Stage{Err: err}
}

// dropRoles removes the entries of former roles of an instance.
func (r registry) dropRoles(in plugin.Instance) error {
	former := slices.DeleteFunc(r.roles(in.Type, in.Name, in.ID), func(role string) bool {
		return slices.Contains(rolesOf(in), role)
	})
	return r.removeRoles(former, in.Name, in.ID)
}

// Remove removes the entries of the roles first, so that after a crash the remaining entry still has their names.
func (r registry) Remove(ptype, name, id string) error {
	if err := r.removeRoles(r.roles(ptype, name, id), name, id); err != nil {
		return err
	}
	return r.remove(ptype, name, id)
}

func (r registry) removeRoles(roles []string, name, id string) error {
	var errs []error
	for _, role := range roles {
		errs = append(errs, r.remove(role, name, id))
	}
	return errors.Join(errs...)
}

func (r registry) remove(ptype, name, id string) error {
	err := r.store.DeregisterPlugin(ptype, name, id)
	if errors.Is(err, dynamicplugins.ErrNotFound) {
		return r.SaveReservation(plugin.Name{Type: ptype, Name: name}) // no removal saves it
	}
	return err
}

func (r registry) Confirm(ptype, name, id string) {
	for _, t := range append(r.roles(ptype, name, id), ptype) {
		_ = r.ConfirmPlugin(t, name, id) // not found if it has just been removed
	}
}

func (r registry) Unreachable(ptype, name, id string, reason error) {
	for _, t := range append(r.roles(ptype, name, id), ptype) {
		_ = r.MarkUnreachable(t, name, id, reason)
	}
}

func (r registry) roles(ptype, name, id string) []string {
	for _, in := range r.store.Instances(ptype, name) {
		if in.Info.AllocID == id && in.Info.Instance != nil {
			return slices.Clone(in.Info.Instance.Registration.Roles)
		}
	}
	return nil
}

type stagedRoles []keeper.Staged

func (s stagedRoles) Publish() {
	for _, staged := range s {
		staged.Publish()
	}
}

func (s stagedRoles) Discard() error {
	var errs []error
	for _, staged := range s {
		errs = append(errs, staged.Discard())
	}
	return errors.Join(errs...)
}

// Restored returns the instances of the pipeline that the store has loaded from its storage.
func Restored(store *dynamicplugins.Store, log *slog.Logger) []plugin.Instance {
	var instances []plugin.Instance
	for _, info := range keeper.Of[*dynamicplugins.PluginInfo](store).RestoredPlugins() {
		if info.IsRole() {
			dropOrphan(store, info, info.Instance.Type, log)
			continue
		}
		if !isOurs(info) {
			continue
		}
		if err := info.Damage; err != nil {
			// Without the socket's identity, it cannot be recognised, and becomes a new instance if it still runs.
			log.Warn("restored plugin has damaged details", "type", info.Type, "name", info.Name, "instance", info.AllocID, "error", err)
		}
		in := *info.Instance
		in.Peer = peerOf(in.Peer)
		instances = append(instances, in)
	}
	return instances
}

// dropOrphan removes the entry of a role if the instance has no entry for its own type any more.
func dropOrphan(store *dynamicplugins.Store, info *dynamicplugins.PluginInfo, mainType string, log *slog.Logger) {
	if _, err := store.PluginForAlloc(mainType, info.Name, info.AllocID); err == nil {
		return
	}
	if err := store.DeregisterPlugin(info.Type, info.Name, info.AllocID); err != nil {
		log.Error("cannot remove a role of a plugin that is not registered", "type", info.Type, "name", info.Name,
			"instance", info.AllocID, "error", err)
		// The next start tries again. Until then it is not dispensed. The only error is that it is gone.
		_ = keeper.Of[*dynamicplugins.PluginInfo](store).MarkUnreachable(info.Type, info.Name, info.AllocID,
			errors.New("its plugin is not registered any more"))
	}
}

// infoOf returns the entry of an instance for its own type.
func infoOf(in plugin.Instance) *dynamicplugins.PluginInfo {
	info := &dynamicplugins.PluginInfo{
		Type: in.Type, Name: in.Name, Version: in.Registration.Version, AllocID: in.ID, Instance: &in,
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: in.Endpoint},
	}
	for key, value := range in.Registration.Details {
		if strings.HasPrefix(key, ownOptions) {
			continue
		}
		if info.Options == nil {
			info.Options = make(map[string]string, len(in.Registration.Details))
		}
		info.Options[key] = value
	}
	// Normalize the values, so that those loaded after a restart are equal.
	in.RegisteredAt = in.RegisteredAt.Round(0).UTC()
	in.Registration.Roles, in.Registration.Details = rolesOf(in), info.Options
	if len(in.Versions) > 0 && (info.Version == "" || info.Version == in.Versions[0]) {
		info.Version, in.Registration.Version = in.Versions[0], ""
	}
	return info
}

// rolesOf returns the roles of an instance without duplicates and its own type.
func rolesOf(in plugin.Instance) []string {
	var roles []string
	for _, role := range in.Registration.Roles {
		if role != "" && role != in.Type && !slices.Contains(roles, role) {
			roles = append(roles, role)
		}
	}
	return roles
}

// roleOf returns the entry of an instance for a role.
func roleOf(info *dynamicplugins.PluginInfo, role string) *dynamicplugins.PluginInfo {
	entry := *info
	entry.Type = role
	entry.Instance = &plugin.Instance{Type: info.Type, Account: info.Instance.Account, Socket: info.Instance.Socket}
	return &entry
}

// peerOf converts a peer that was saved under an older kernel; see [sock.Renew].
func peerOf(p plugin.Peer) plugin.Peer {
	if p.Boot == sock.BootID() {
		p.Start = sock.Renew(p.PID, p.Start)
	}
	return p
}

// isOurs reports whether info is the entry of an instance of the pipeline for its own type.
func isOurs(info *dynamicplugins.PluginInfo) bool {
	return info.Instance != nil && !info.IsRole() && info.Instance.Source != ""
}

// Statuses returns the statuses of instances in a store that the pipeline does not know: those that other packages have added or, if known
// is false, all. If name is not empty, it returns only instances of that name.
func Statuses(store *dynamicplugins.Store, name string, known bool) []plugin.Status {
	var statuses []plugin.Status
	for _, in := range store.Instances("", name) {
		if in.Info.IsRole() {
			continue // it has another entry for its own type
		}
		if !known || !isOurs(in.Info) {
			statuses = append(statuses, statusOf(in))
		}
	}
	return statuses
}

// statusOf returns the status of an instance that the pipeline does not know.
func statusOf(in dynamicplugins.Instance) plugin.Status {
	known := plugin.Instance{Source: plugin.SourceHost}
	if isOurs(in.Info) {
		known = *in.Info.Instance
	}
	s := plugin.Status{
		Type: in.Info.Type, Name: in.Info.Name, Version: in.Info.Version,
		State: plugin.State(in.State), Current: in.State == dynamicplugins.InstanceRegistered,
		Endpoint: in.Info.ConnectionInfo.SocketPath, Instance: in.Info.AllocID, Source: known.Source,
		Versions: known.Versions, Registration: known.Registration, SocketPath: known.SocketPath,
		RegisteredAt: known.RegisteredAt, Since: in.Since,
	}
	if in.Reason != nil {
		s.LastError = in.Reason.Error()
	}
	return s
}

// Judge returns a function that checks the listener of a new shared connection. It accepts plugins with an unknown account.
func Judge(judge *trustjudge.Judge) func(*dynamicplugins.PluginInfo, net.Conn) error {
	return func(info *dynamicplugins.PluginInfo, conn net.Conn) error {
		// If the restored details are damaged, there is no socket identity, and the check is stricter.
		return peerauth.Check(judge, info.Instance, info.ConnectionInfo.SocketPath, conn)
	}
}
