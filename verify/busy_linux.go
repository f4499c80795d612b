package verify

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// waitedFor returns how long the threads of a process have been ready to run without a processor, as the kernel counts it (schedstat); zero
// if it does not, or the process is gone.
func waitedFor(pid int) time.Duration {
	threads, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "schedstat"))
	var sum time.Duration
	for _, thread := range threads {
		text, _ := os.ReadFile(thread)
		if fields := strings.Fields(string(text)); len(fields) > 1 { // on a processor, waiting for one, time slices
			ns, _ := strconv.ParseInt(fields[1], 10, 64)
			sum += time.Duration(ns)
		}
	}
	return sum
}
