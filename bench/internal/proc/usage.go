package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Now is the time in nanoseconds on a clock that all processes of the machine share and nobody sets.
func Now() (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("cannot read the monotonic clock: %w", err)
	}
	return ts.Nano(), nil
}

// Usage is what a process has used since it was started.
type Usage struct {
	CPU        time.Duration // user and system
	PeakMemory int64         // bytes
}

// ReadUsage says what this process has used so far. The peak of getrusage would include the time before exec.
func ReadUsage() (Usage, error) {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return Usage{}, fmt.Errorf("cannot read the CPU time: %w", err)
	}
	peak, err := memory("VmHWM:")
	return Usage{CPU: time.Duration(r.Utime.Nano() + r.Stime.Nano()), PeakMemory: peak}, err
}

// Costs is what a process has spent since it was started.
type Costs struct {
	User, System     time.Duration
	Objects, Bytes   int64 // allocated
	Switches, Faults int64 // how often a thread waited, and how often for a page
}

// ReadCosts says what this process has spent so far.
func ReadCosts() (Costs, error) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return Costs{}, fmt.Errorf("cannot read the CPU time: %w", err)
	}
	return Costs{
		User: time.Duration(r.Utime.Nano()), System: time.Duration(r.Stime.Nano()),
		Objects: int64(m.Mallocs), Bytes: int64(m.TotalAlloc), Switches: r.Nvcsw, Faults: r.Minflt,
	}, nil
}

// Footprint is what a process holds.
type Footprint struct {
	Resident, Live          int64 // bytes: of memory, and of objects and stacks in use
	Goroutines, Descriptors int
}

// ReadFootprint says what this process holds after it has returned to the system what it does not use.
func ReadFootprint() (Footprint, error) {
	debug.FreeOSMemory()
	resident, err := memory("VmRSS:")
	if err != nil {
		return Footprint{}, err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return Footprint{}, fmt.Errorf("cannot count the descriptors: %w", err)
	}
	return Footprint{
		Resident: resident, Live: int64(m.HeapAlloc + m.StackInuse), Goroutines: runtime.NumGoroutine(), Descriptors: len(descriptors),
	}, nil
}

// Tree is what a process and all that descend from it hold.
type Tree struct {
	// Resident is what the system counts for each, in bytes, and Shared the same with its part only of what several have in common.
	Resident, Shared int64
	Processes        int
}

// ReadTree says what a process and its descendants hold.
func ReadTree(pid int) (t Tree, err error) {
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return Tree{}, err
	}
	for l := range strings.Lines(string(rollup)) {
		for key, size := range map[string]*int64{"Rss:": &t.Resident, "Pss:": &t.Shared} {
			rest, ok := strings.CutPrefix(l, key)
			if !ok {
				continue
			}
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return Tree{}, err
			}
			*size = kib << 10
		}
	}
	t.Processes = 1
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return Tree{}, err
	}
	for _, of := range threads {
		children, err := os.ReadFile(of)
		if err != nil {
			return Tree{}, err
		}
		for _, child := range strings.Fields(string(children)) {
			number, err := strconv.Atoi(child)
			if err != nil {
				return Tree{}, err
			}
			below, err := ReadTree(number)
			if err != nil {
				return Tree{}, err
			}
			t.Resident += below.Resident
			t.Shared += below.Shared
			t.Processes += below.Processes
		}
	}
	return t, nil
}

// memory reads a size of this process in bytes.
func memory(line string) (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("cannot read the memory in use: %w", err)
	}
	for l := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(l, line); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/self/status has no line " + line)
}
