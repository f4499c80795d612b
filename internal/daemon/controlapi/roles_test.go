package controlapi

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestRolesAreNames checks that a plugin is found, and waited for, under each of its roles as under its type.
func TestRolesAreNames(t *testing.T) {
	source := &recorded{live: make(chan plugin.Event, 1), plugins: []plugin.Status{{
		Type: "CSIPlugin", Name: "disk", State: plugin.StateRegistered, Registration: plugin.Registration{Roles: []string{"csi-node"}},
	}}}
	api := serveTo(t, source)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, ptype := range []string{"CSIPlugin", "csi-node"} {
		found, err := api.GetPlugin(ctx, &patchbayv1.GetPluginRequest{Type: ptype, Name: "disk"})
		if err != nil || len(found.GetPlugins()) != 1 {
			t.Errorf("get %s: %v", ptype, err)
		}
		_, err = api.WaitForPlugin(ctx, &patchbayv1.WaitForPluginRequest{
			Type: ptype, Name: "disk", For: patchbayv1.WaitFor_WAIT_FOR_REGISTERED,
		})
		if err != nil {
			t.Errorf("wait for %s: %v", ptype, err)
		}
	}
	_, err := api.GetPlugin(ctx, &patchbayv1.GetPluginRequest{Type: "csi-controller", Name: "disk"})
	if connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), "no such plugin is known") {
		t.Errorf("a role that it does not have: %v", err)
	}
}
