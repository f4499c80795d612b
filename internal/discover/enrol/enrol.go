// Package enrol keeps the instances that the pipeline registers in the registry of plugins: as the reconciler sees that registry, with what
// must be known of an instance after a restart, and as what is read back then. It decides nothing; that is the reconciler's business.
package enrol

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/judged"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/reconciler"
	"github.com/patchbay-dev/patchbay/trust"
)

// What must be known of an instance after a restart is kept in the options of its registry entry.
const (
	optionSocketPath   = "patchbay.dev/socket-path"
	optionSocketID     = "patchbay.dev/socket-id"
	optionPeer         = "patchbay.dev/peer"
	optionAccount      = "patchbay.dev/account"
	optionVersions     = "patchbay.dev/versions"
	optionSource       = "patchbay.dev/source"
	optionRank         = "patchbay.dev/rank"
	optionRegisteredAt = "patchbay.dev/registered-at"
	// optionRoles are the roles of an instance, in its entry under its own type; optionRoleOf is that type, in the entries of the roles.
	optionRoles  = "patchbay.dev/roles"
	optionRoleOf = "patchbay.dev/role-of"
	// optionEndpointWatched says that the handler asked for that.
	optionEndpointWatched = "patchbay.dev/endpoint-watched"
	// ownOptions begin the keys that are the pipeline's own.
	ownOptions = "patchbay.dev/"
)

// Registry is the registry of plugins as the reconciler sees it.
type Registry struct {
	store *dynamicplugins.Store
}

// In returns what enrols instances in a registry.
func In(store *dynamicplugins.Store) *Registry { return &Registry{store} }

// Stage stages the instance under its type and under each of its roles. All are saved at once, so that a storage can do it in one step.
func (r *Registry) Stage(in reconciler.Instance) (reconciler.Staged, error) {
	info := infoOf(in)
	infos := []*dynamicplugins.PluginInfo{info}
	for _, role := range rolesOf(in) {
		infos = append(infos, roleOf(info, role))
	}
	if err := r.dropRoles(in); err != nil {
		return nil, err
	}
	all := make(stagedRoles, len(infos))
	err := atOnce(len(infos), func(i int) error {
		staged, err := r.store.StagePlugin(infos[i])
		if err == nil {
			all[i] = staged
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, all.Discard())
	}
	return all, nil
}

// dropRoles removes the instance from the roles that it had and has no more.
func (r *Registry) dropRoles(in reconciler.Instance) error {
	former := r.roles(in.Type, in.Name, in.ID)
	if len(former) == 0 {
		return nil
	}
	now := rolesOf(in)
	former = slices.DeleteFunc(former, func(role string) bool { return slices.Contains(now, role) })
	return r.removeRoles(former, in.Name, in.ID)
}

// Remove removes the instance from its roles first: if the host ends in between, the next one knows of what is left.
func (r *Registry) Remove(ptype, name, id string) error {
	if err := r.removeRoles(r.roles(ptype, name, id), name, id); err != nil {
		return err
	}
	return r.remove(ptype, name, id)
}

func (r *Registry) removeRoles(roles []string, name, id string) error {
	return atOnce(len(roles), func(i int) error { return r.remove(roles[i], name, id) })
}

func (r *Registry) remove(ptype, name, id string) error {
	err := r.store.DeregisterPlugin(ptype, name, id)
	if errors.Is(err, dynamicplugins.ErrNotFound) {
		return r.store.SaveName(ptype, name) // which would have been saved with it
	}
	return err
}

// KeepName implements [reconciler.NameKeeper].
func (r *Registry) KeepName(name reconciler.KeptName) {
	r.store.KeepName(dynamicplugins.KeptName{
		Type: name.Type, Name: name.Name, UID: name.By.UID, GID: name.By.GID, Until: name.Until,
	})
}

// SaveName implements [reconciler.NameKeeper].
func (r *Registry) SaveName(ptype, name string) error { return r.store.SaveName(ptype, name) }

// Names returns the names that were kept before.
func Names(store *dynamicplugins.Store) []reconciler.KeptName {
	var names []reconciler.KeptName
	for _, n := range store.KeptNames() {
		by := trust.Account{UID: n.UID, GID: n.GID, Known: true}
		names = append(names, reconciler.KeptName{Type: n.Type, Name: n.Name, By: by, Until: n.Until})
	}
	return names
}

// Confirm says that an instance lives, in each of its roles.
func (r *Registry) Confirm(ptype, name, id string) {
	for _, t := range append(r.roles(ptype, name, id), ptype) {
		// Not found means that it went meanwhile.
		_ = r.store.ConfirmPlugin(t, name, id)
	}
}

// Unreachable says why an instance is not to be given out, in each of its roles.
func (r *Registry) Unreachable(ptype, name, id string, reason error) {
	for _, t := range append(r.roles(ptype, name, id), ptype) {
		_ = r.store.MarkUnreachable(t, name, id, reason)
	}
}

// roles returns the roles under which an instance is registered.
func (r *Registry) roles(ptype, name, id string) []string {
	info, err := r.store.PluginForAlloc(ptype, name, id)
	if err != nil {
		return nil
	}
	roles, _ := unmarshalList(info.Options[optionRoles])
	return roles
}

// stagedRoles is one instance under its type and its roles, staged. Those that were not staged are nil.
type stagedRoles []dynamicplugins.Staged

func (s stagedRoles) Publish() {
	for _, staged := range s {
		staged.Publish()
	}
}

func (s stagedRoles) Discard() error {
	return atOnce(len(s), func(i int) error {
		if s[i] == nil {
			return nil
		}
		return s[i].Discard()
	})
}

// atOnce calls f for 0 to n-1, in goroutines of their own if there are several, and joins the errors.
func atOnce(n int, f func(i int) error) error {
	if n == 1 {
		return f(0)
	}
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { errs[i] = f(i) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// Restored returns what the registry has from before, as far as the pipeline put it there.
func Restored(store *dynamicplugins.Store, log *slog.Logger) []reconciler.Instance {
	var instances []reconciler.Instance
	for _, info := range store.RestoredPlugins() {
		if mainType := info.Options[optionRoleOf]; mainType != "" {
			dropOrphan(store, info, mainType, log)
			continue
		}
		if info.Options[optionSource] == "" {
			continue
		}
		in, err := instanceOf(info)
		if err != nil {
			// Without its socket's identity it cannot be recognised; the pipeline will find it dead or as a new instance.
			log.Warn("restored plugin has damaged details", "type", info.Type, "name", info.Name, "instance", info.AllocID, "error", err)
		}
		instances = append(instances, in)
	}
	return instances
}

// dropOrphan removes a role of an instance that is not registered under its own type any more.
func dropOrphan(store *dynamicplugins.Store, info *dynamicplugins.PluginInfo, mainType string, log *slog.Logger) {
	if _, err := store.PluginForAlloc(mainType, info.Name, info.AllocID); err == nil {
		return
	}
	if err := store.DeregisterPlugin(info.Type, info.Name, info.AllocID); err != nil {
		log.Error("cannot remove a role of a plugin that is not registered", "type", info.Type, "name", info.Name,
			"instance", info.AllocID, "error", err)
	}
}

func infoOf(in reconciler.Instance) *dynamicplugins.PluginInfo {
	registration := in.Registration
	info := &dynamicplugins.PluginInfo{
		Type:           in.Type,
		Name:           in.Name,
		Version:        registration.Version,
		AllocID:        in.ID,
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: in.Endpoint},
		Options: map[string]string{
			optionSocketPath:   in.SocketPath,
			optionSocketID:     sock.ID(in.Socket).String(),
			optionPeer:         formatPeer(in.Peer),
			optionAccount:      formatAccount(in.Account),
			optionVersions:     marshalList(in.Versions),
			optionSource:       string(in.Source),
			optionRegisteredAt: in.RegisteredAt.UTC().Format(time.RFC3339Nano),
		},
	}
	if info.Version == "" && len(in.Versions) > 0 {
		info.Version = in.Versions[0]
	}
	if in.Rank != 0 {
		info.Options[optionRank] = strconv.FormatUint(in.Rank, 10)
	}
	if roles := rolesOf(in); len(roles) > 0 {
		info.Options[optionRoles] = marshalList(roles)
	}
	if registration.WatchEndpoint {
		info.Options[optionEndpointWatched] = "true"
	}
	for key, value := range registration.Details {
		if !strings.HasPrefix(key, ownOptions) {
			info.Options[key] = value
		}
	}
	return info
}

// rolesOf returns the roles of an instance, each once and without its own type, as which it is registered anyway.
func rolesOf(in reconciler.Instance) []string {
	var roles []string
	for _, role := range in.Registration.Roles {
		if role != "" && role != in.Type && !slices.Contains(roles, role) {
			roles = append(roles, role)
		}
	}
	return roles
}

// roleOf returns the entry of a role of an instance.
func roleOf(info *dynamicplugins.PluginInfo, role string) *dynamicplugins.PluginInfo {
	entry := *info
	entry.Type = role
	entry.Options = map[string]string{
		optionRoleOf: info.Type, optionAccount: info.Options[optionAccount], optionSocketID: info.Options[optionSocketID],
	}
	for key, value := range info.Options {
		if !strings.HasPrefix(key, ownOptions) {
			entry.Options[key] = value
		}
	}
	return &entry
}

func marshalList(list []string) string {
	b, err := json.Marshal(list)
	if err != nil {
		return "" // Strings cannot fail to marshal.
	}
	return string(b)
}

func unmarshalList(s string) (list []string, err error) {
	if s != "" {
		err = json.Unmarshal([]byte(s), &list)
	}
	return list, err
}

// instanceOf is the reverse of infoOf. With an error it returns what could be read.
func instanceOf(info *dynamicplugins.PluginInfo) (reconciler.Instance, error) {
	in := reconciler.Instance{
		ID: info.AllocID, Type: info.Type, Name: info.Name,
		Endpoint:   info.ConnectionInfo.SocketPath,
		SocketPath: info.Options[optionSocketPath],
		Source:     reconciler.Source(info.Options[optionSource]),
	}
	var wrong [7]error
	var id sock.ID
	id, wrong[0] = sock.ParseID(info.Options[optionSocketID])
	in.Socket = cache.SocketID(id)
	in.Peer, wrong[1] = parsePeer(info.Options[optionPeer])
	in.Account, wrong[2] = parseAccount(info.Options[optionAccount])
	in.Versions, wrong[3] = unmarshalList(info.Options[optionVersions])
	in.Rank, wrong[4] = parseRank(info.Options[optionRank])
	in.RegisteredAt, wrong[5] = time.Parse(time.RFC3339Nano, info.Options[optionRegisteredAt])
	in.Registration.Roles, wrong[6] = unmarshalList(info.Options[optionRoles])
	in.Registration.WatchEndpoint = info.Options[optionEndpointWatched] != ""
	if len(in.Versions) == 0 || info.Version != in.Versions[0] {
		in.Registration.Version = info.Version
	}
	for key, value := range info.Options {
		if !strings.HasPrefix(key, ownOptions) {
			if in.Registration.Details == nil {
				in.Registration.Details = map[string]string{}
			}
			in.Registration.Details[key] = value
		}
	}
	return in, errors.Join(wrong[:]...)
}

// Statuses describes the instances in a registry that the pipeline does not know: those that others put there and, before it knows any,
// all.
func Statuses(store *dynamicplugins.Store, known bool) []reconciler.Status {
	var statuses []reconciler.Status
	for _, in := range store.Instances("", "") {
		if in.Info.Options[optionRoleOf] != "" {
			continue // it stands there under its own type
		}
		if !known || in.Info.Options[optionSource] == "" {
			statuses = append(statuses, statusOf(in))
		}
	}
	return statuses
}

// statusOf describes an instance that the pipeline does not know, or not yet.
func statusOf(in dynamicplugins.Instance) reconciler.Status {
	known := reconciler.Instance{Source: reconciler.SourceHost}
	if in.Info.Options[optionSource] != "" {
		// What is damaged was logged when it was restored.
		known, _ = instanceOf(in.Info)
	}
	s := reconciler.Status{
		Type: in.Info.Type, Name: in.Info.Name, Version: in.Info.Version,
		State: reconciler.State(in.State), Current: in.State == dynamicplugins.InstanceRegistered,
		Endpoint: in.Info.ConnectionInfo.SocketPath, Instance: in.Info.AllocID, Source: known.Source,
		Versions: known.Versions, Registration: known.Registration, SocketPath: known.SocketPath,
		RegisteredAt: known.RegisteredAt, Since: in.Since,
	}
	if in.Reason != nil {
		s.LastError = in.Reason.Error()
	}
	return s
}

// Judge returns what judges each shared connection. Of an older host's plugins nobody knows the account until they register again.
func Judge(judge *trust.Judge) func(*dynamicplugins.PluginInfo, net.Conn) error {
	return func(info *dynamicplugins.PluginInfo, conn net.Conn) error {
		// What is damaged was logged when it was restored: without an account nothing is judged, and without the socket more is refused.
		account, _ := parseAccount(info.Options[optionAccount])
		socket, _ := sock.ParseID(info.Options[optionSocketID])
		p := judged.Plugin{Type: cmp.Or(info.Options[optionRoleOf], info.Type), Account: account, Socket: socket}
		return judged.Check(judge, p, info.ConnectionInfo.SocketPath, conn)
	}
}

func parseRank(s string) (uint64, error) {
	if s == "" {
		return 0, nil // of an older host
	}
	rank, err := strconv.ParseUint(s, 10, 63) // which leaves room for greater ones
	if err != nil {
		return 0, fmt.Errorf("rank %q is not a number below 2⁶³: %w", s, err)
	}
	return rank, nil
}

func formatAccount(a trust.Account) string {
	if !a.Known {
		return ""
	}
	return strconv.FormatUint(uint64(a.UID), 10) + " " + strconv.FormatUint(uint64(a.GID), 10)
}

func parseAccount(s string) (trust.Account, error) {
	if s == "" {
		return trust.Account{}, nil // of an older host, or of a system that does not say
	}
	account := trust.Account{Known: true}
	_, err := fmt.Sscanf(s, "%d %d", &account.UID, &account.GID)
	if err != nil || formatAccount(account) != s {
		return trust.Account{}, fmt.Errorf("account %q is not of the form UID GID", s)
	}
	return account, nil
}

func formatPeer(p reconciler.Peer) string {
	if p == (reconciler.Peer{}) {
		return ""
	}
	return strconv.Itoa(p.PID) + " " + strconv.FormatUint(p.StartTime, 10) + " " + p.Boot
}

func parsePeer(s string) (reconciler.Peer, error) {
	if s == "" {
		return reconciler.Peer{}, nil
	}
	var p reconciler.Peer
	_, err := fmt.Sscanf(s, "%d %d ", &p.PID, &p.StartTime)
	p.Boot = s[strings.LastIndexByte(s, ' ')+1:] // empty where a boot has no name
	if err != nil || formatPeer(p) != s {
		return reconciler.Peer{}, fmt.Errorf("peer %q is not of the form PID START BOOT", s)
	}
	return p, nil
}
