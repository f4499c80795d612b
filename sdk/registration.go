package sdk

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// pidHeader is the metadata by which a plugin says in the answer to GetInfo which process it is.
const pidHeader = "patchbay-plugin-pid"

// registration is the registration service. A host that restarts asks and notifies anew, so it answers any number of times.
type registration struct {
	registerapi.UnimplementedRegistrationServer
	plugin Plugin
	log    *slog.Logger

	registered   <-chan struct{} // closed by the first success
	onRegistered func()
	refused      chan string // holds the first refusal that nobody took yet
}

func newRegistration(p Plugin, log *slog.Logger) *registration {
	registered := make(chan struct{})
	return &registration{
		plugin: p, log: log,
		registered:   registered,
		onRegistered: sync.OnceFunc(func() { close(registered) }),
		refused:      make(chan string, 1),
	}
}

// GetInfo says who the plugin is.
func (r *registration) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	// An older instance is known by it to the one that takes over; a host does not look.
	_ = grpc.SetHeader(ctx, metadata.Pairs(pidHeader, strconv.Itoa(os.Getpid())))
	return &registerapi.PluginInfo{
		Type: r.plugin.Type, Name: r.plugin.Name, Endpoint: r.plugin.Endpoint, SupportedVersions: slices.Clone(r.plugin.Versions),
	}, nil
}

// NotifyRegistrationStatus hears whether the plugin is registered. It does not block.
func (r *registration) NotifyRegistrationStatus(
	_ context.Context, status *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	if status.PluginRegistered {
		// Not at the level that is sent: the host knows it, and the plugin would connect to it for this alone.
		r.log.Debug("the host registered the plugin", "name", r.plugin.String())
		r.onRegistered()
	} else {
		r.log.Warn("the host refused the plugin", "name", r.plugin.String(), "reason", status.Error)
		select {
		case r.refused <- status.Error:
		default:
		}
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
