package pipeline

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestAskingIsBounded(t *testing.T) {
	a := newAsking(3, 5)
	var ends []func()
	begin := func(uid uint32) error {
		end, err := a.begin(t.Context(), 10*time.Millisecond, uid)
		if err == nil {
			ends = append(ends, end)
		}
		return err
	}
	for i, uid := range []uint32{7, 7, 7, 8, 8} {
		if err := begin(uid); err != nil {
			t.Fatalf("plugin %d: %v", i, err)
		}
	}
	for uid, why := range map[uint32]string{7: "one more of a user", 9: "one more of all"} {
		if err := begin(uid); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "neither registered nor refused yet") {
			t.Errorf("%s: %v", why, err)
		}
	}
	ends[4]()
	ends[4]() // again
	if err := begin(9); err != nil {
		t.Errorf("another user's, when one is settled: %v", err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := a.begin(t.Context(), time.Minute, 7)
		waiting <- err
	}()
	ends[0]()
	if err := <-waiting; err != nil {
		t.Errorf("one that waited: %v", err)
	}
	if end, err := newAsking(0, 0).begin(t.Context(), time.Minute, 7); err != nil {
		t.Error(err)
	} else {
		end()
	}
}
