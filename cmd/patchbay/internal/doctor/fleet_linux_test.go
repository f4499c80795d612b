package doctor

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/fleet"
)

// etcd returns what looks at members of etcd and finds these.
func etcd(members ...fleet.Member) func(context.Context) []fleet.Member {
	return func(context.Context) []fleet.Member { return members }
}

// TestDifferentClusters: members of etcd that belong to different clusters, as after an incomplete restore, are a failure.
func TestDifferentClusters(t *testing.T) {
	found := checkFleet(t.Context(), Subject{Fleet: etcd(
		fleet.Member{Endpoint: "https://z:1", Err: errors.New("away")}, fleet.Member{Endpoint: "https://a:1", Cluster: 1},
		fleet.Member{Endpoint: "https://b:1", Cluster: 1}, fleet.Member{Endpoint: "https://c:1", Cluster: 2},
	)})
	if len(found) != 2 || found[0].Status != Warn || found[1].Status != Fail || !strings.Contains(found[1].Remedy, "stop all members before") ||
		found[1].Message != "etcd https://a:1 and https://c:1 belong to different clusters" {
		t.Errorf("got %+v", found)
	}
}
