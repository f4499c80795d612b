package doctor

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestStrangers: members of etcd that belong to different clusters, as after half a restore, are told.
func TestStrangers(t *testing.T) {
	found := checkFleet(t.Context(), Subject{Fleet: func(context.Context) []Member {
		return []Member{{"https://z:1", errors.New("away"), 0}, {"https://a:1", nil, 1}, {"https://b:1", nil, 1}, {"https://c:1", nil, 2}}
	}})
	if len(found) != 2 || found[0].Status != Warn || found[1].Status != Fail || !strings.Contains(found[1].Remedy, "stop all members before") ||
		found[1].Message != "etcd https://a:1 and https://c:1 belong to different clusters" {
		t.Errorf("got %+v", found)
	}
}
