package patchbay

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// The pipeline keeps what it must know of an instance after a restart in the options of its registry entry.
const (
	optionSocketPath   = "patchbay.dev/socket-path"
	optionSocketID     = "patchbay.dev/socket-id"
	optionPeer         = "patchbay.dev/peer"
	optionVersions     = "patchbay.dev/versions"
	optionSource       = "patchbay.dev/source"
	optionRegisteredAt = "patchbay.dev/registered-at"
)

// record is the registry as the reconciler sees it.
type record struct {
	registry dynamicplugins.Registry
}

func (r *record) Stage(in reconciler.Instance) (reconciler.Staged, error) {
	return r.registry.StagePlugin(infoOf(in))
}

func (r *record) Remove(ptype, name, id string) error {
	err := r.registry.DeregisterPlugin(ptype, name, id)
	if errors.Is(err, dynamicplugins.ErrNotFound) {
		return nil
	}
	return err
}

func (r *record) Confirm(ptype, name, id string) {
	// Not found means that it went meanwhile.
	_ = r.registry.ConfirmPlugin(ptype, name, id)
}

func (r *record) Unreachable(ptype, name, id string, reason error) {
	_ = r.registry.MarkUnreachable(ptype, name, id, reason)
}

// restored returns what the registry has from before, as far as the pipeline put it there.
func restored(registry dynamicplugins.Registry, log *slog.Logger) []reconciler.Instance {
	var instances []reconciler.Instance
	for _, info := range registry.RestoredPlugins() {
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

func infoOf(in reconciler.Instance) *dynamicplugins.PluginInfo {
	versions, err := json.Marshal(in.Versions)
	if err != nil {
		versions = nil // Strings cannot fail to marshal.
	}
	info := &dynamicplugins.PluginInfo{
		Type:           in.Type,
		Name:           in.Name,
		AllocID:        in.ID,
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: in.Endpoint},
		Options: map[string]string{
			optionSocketPath:   in.SocketPath,
			optionSocketID:     sock.ID(in.Socket).String(),
			optionPeer:         formatPeer(in.Peer),
			optionVersions:     string(versions),
			optionSource:       string(in.Source),
			optionRegisteredAt: in.RegisteredAt.UTC().Format(time.RFC3339Nano),
		},
	}
	if len(in.Versions) > 0 {
		info.Version = in.Versions[0]
	}
	return info
}

// instanceOf is the reverse of infoOf. With an error it returns what could be read.
func instanceOf(info *dynamicplugins.PluginInfo) (reconciler.Instance, error) {
	in := reconciler.Instance{
		ID: info.AllocID, Type: info.Type, Name: info.Name,
		Endpoint:   info.ConnectionInfo.SocketPath,
		SocketPath: info.Options[optionSocketPath],
		Source:     reconciler.Source(info.Options[optionSource]),
	}
	id, idErr := sock.ParseID(info.Options[optionSocketID])
	in.Socket = cache.SocketID(id)
	peer, peerErr := parsePeer(info.Options[optionPeer])
	in.Peer = peer
	versionsErr := json.Unmarshal([]byte(info.Options[optionVersions]), &in.Versions)
	at, timeErr := time.Parse(time.RFC3339Nano, info.Options[optionRegisteredAt])
	in.RegisteredAt = at
	return in, errors.Join(idErr, peerErr, versionsErr, timeErr)
}

// statusOf describes an instance that the pipeline does not know, or not yet.
func statusOf(in dynamicplugins.Instance) PluginStatus {
	known := reconciler.Instance{Source: reconciler.SourceHost}
	if in.Info.Options[optionSource] != "" {
		// What is damaged was logged when it was restored.
		known, _ = instanceOf(in.Info)
	}
	s := PluginStatus{
		Type: in.Info.Type, Name: in.Info.Name, Version: in.Info.Version,
		State: reconciler.State(in.State), Current: in.State == dynamicplugins.InstanceRegistered,
		Endpoint: in.Info.ConnectionInfo.SocketPath, Instance: in.Info.AllocID, Source: known.Source,
		Versions: known.Versions, SocketPath: known.SocketPath, RegisteredAt: known.RegisteredAt, Since: in.Since,
	}
	if in.Reason != nil {
		s.LastError = in.Reason.Error()
	}
	return s
}

func formatPeer(p reconciler.Peer) string {
	if p == (reconciler.Peer{}) {
		return ""
	}
	return fmt.Sprintf("%d %d %s", p.PID, p.StartTime, p.Boot)
}

func parsePeer(s string) (reconciler.Peer, error) {
	if s == "" {
		return reconciler.Peer{}, nil
	}
	fields := strings.SplitN(s, " ", 3)
	if len(fields) != 3 {
		return reconciler.Peer{}, fmt.Errorf("peer %q is not of the form PID START BOOT", s)
	}
	pid, pidErr := strconv.Atoi(fields[0])
	start, startErr := strconv.ParseUint(fields[1], 10, 64)
	if err := errors.Join(pidErr, startErr); err != nil {
		return reconciler.Peer{}, fmt.Errorf("peer %q: %w", s, err)
	}
	return reconciler.Peer{PID: pid, StartTime: start, Boot: fields[2]}, nil
}
