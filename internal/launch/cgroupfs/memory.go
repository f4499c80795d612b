package cgroupfs

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory returns how much memory the process's group may have, with all that is in it, by what the groups above it may have too. It is not
// bounded if none of them says so, or if that cannot be read.
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
	const none = 1 << 60 // version 1 says so by a number near the greatest
	return bytes, bytes < none
}

// readBytes returns the number on the line of a file that begins with a prefix, and the greatest number if there is none.
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
