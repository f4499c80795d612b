package cgroupfs

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMemory(t *testing.T) {
	for name, test := range map[string]struct {
		files   map[string]string
		v1      bool
		want    int64
		bounded bool
	}{
		"no bound":         {map[string]string{"a/b/memory.max": "max\n", "a/memory.max": "max\n"}, false, 0, false},
		"its own":          {map[string]string{"a/b/memory.max": "1000\n", "a/memory.max": "2000\n"}, false, 1000, true},
		"one above":        {map[string]string{"a/b/memory.max": "max\n", "a/memory.max": "2000\n"}, false, 2000, true},
		"version 1":        {map[string]string{"a/b/memory.stat": "cache 5\nhierarchical_memory_limit 3000\nrss 7\n"}, true, 3000, true},
		"none, version 1":  {map[string]string{"a/b/memory.stat": "hierarchical_memory_limit 9223372036854771712\n"}, true, 0, false},
		"nothing readable": {nil, true, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range test.files {
				path := filepath.Join(dir, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			place := Place{Mount: dir, Root: "/", Own: "/a/b"}
			s := System{Unified: &place}
			if test.v1 {
				s = System{V1: map[string]Place{"memory": place}}
			}
			if got, bounded := s.Memory(); bounded != test.bounded || bounded && got != test.want {
				t.Errorf("%d, %v, want %d, %v", got, bounded, test.want, test.bounded)
			}
		})
	}
}
