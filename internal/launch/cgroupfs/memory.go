package cgroupfs

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory returns the memory limit of the process's group, which is the lowest limit of the group and its ancestors. It reports false if
// there is no limit, or if the limits cannot be read.
func (s System) Memory() (bytes int64, bounded bool) {
	bytes = math.MaxInt64
	if s.Unified != nil {
		if dir, err := s.Unified.Dir(); err == nil {
			for ; ; dir = filepath.Dir(dir) {
				bytes = min(bytes, readBytes(filepath.Join(dir, "memory.max"), ""))
				if dir == s.Unified.Mount || dir == filepath.Dir(dir) {
					break
				}
			}
		}
	}
	if v1, ok := s.V1["memory"]; ok {
		if dir, err := v1.Dir(); err == nil {
			bytes = min(bytes, readBytes(filepath.Join(dir, "memory.stat"), "hierarchical_memory_limit "))
		}
	}
	const none = 1 << 60 // in version 1, no limit is a number near the largest one
	return bytes, bytes < none
}

// readBytes returns the number after a prefix in a line of a file; [math.MaxInt64] if there is none.
func readBytes(path, prefix string) int64 {
	text, _ := os.ReadFile(path) // a group at the root of a hierarchy has no such file
	for line := range strings.Lines(string(text)) {
		if number, ok := strings.CutPrefix(strings.TrimSpace(line), prefix); ok {
			if n, err := strconv.ParseInt(number, 10, 64); err == nil {
				return n
			}
		}
	}
	return math.MaxInt64
}
