package device

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// stored is a store in memory.
type stored map[string][]byte

func (s stored) Put(key string, value []byte) error { s[key] = value; return nil }

func (s stored) Delete(key string) error { delete(s, key); return nil }

func (s stored) ForEach(fn func(key string, value []byte) error) error {
	for key, value := range s {
		if err := fn(key, value); err != nil {
			return err
		}
	}
	return nil
}

// TestStoredForm: what an earlier version has stored is read, and written in the same form.
func TestStoredForm(t *testing.T) {
	const record = `{"resource":"example.com/gpu","owner":"o","count":2,"wanted":["a"],"devices":["a","b"],"time":"2026-01-02T03:04:05Z",
		"answer":{"envs":{"A":"1"},"mounts":[{"containerPath":"/c","hostPath":"/h","readOnly":true}]},"preStart":true}`
	h := &Handler{Store: stored{"allocation/example.com/gpu o": []byte(record)}}
	if err := h.Open(); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	again, err := json.Marshal(h.resources["example.com/gpu"].allocations["o"])
	if err != nil {
		t.Fatal(err)
	}
	var was, is map[string]any
	if err := json.Unmarshal([]byte(record), &was); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(again, &is); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(was, is); diff != "" {
		t.Error(diff)
	}
}
