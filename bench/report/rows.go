package main

import (
	"slices"
	"strings"
)

// row is a comparison: what its benchmark prints, and what is to come out.
type row struct {
	File, Name, Title string
	// Base is the contestant that the others are compared with, in the first of the Units.
	Base  string
	Units []string
	Goals []goal
}

// goal is what a figure has to be: at most Limit, or at least that; times the best figure of the contestants Base, or else as it is; or at
// most that much above it.
type goal struct {
	Params     []string // the comparisons in which it is a goal
	Unit       string
	Ours, Base []string
	Limit      float64
	AtLeast    bool
	Above      bool
	// BaseParams is the comparison of Base, if it is another one.
	BaseParams string
	// BaseUnit is the figure of Base, if it is another one.
	BaseUnit string
}

// growth is a cost that should not grow with the number of plugins: a figure of the comparisons whose parameters are Params and Vary=N.
type growth struct {
	File, Title, Axis string
	Params, Vary      string
	Unit              string
	Scale             float64 // what a figure is multiplied with
	Each              bool    // the figure is that of all plugins together
	Contestants       []string
}

// ours are the contestants that are Patchbay, and the floors what they are compared with. All others are peers.
var (
	ours = []string{
		"watcher", "runtime", "patchbay", "patchbay-stuck", "host", "host-ticket", "host-socketpair", "launcher", "launcher-state",
		"stable", "control", "side-by-side", "handover", "recreate", "side-by-side-goplugin", "handover-goplugin", "recreate-goplugin",
		"configured-500",
	}
	floors = []string{
		"floor", "floor-http2", "floor-raw", "idle", "bare", "bare-socketpair", "memory", "bbolt", "bbolt-group", "bbolt-batch50µs",
		"bbolt-batch200µs", "bbolt-batch1ms", "direct", "steady", "steady-goplugin", "configured-5",
	}
)

// rank is the place of a contestant in a table: floors, Patchbay, peers.
func rank(contestant string) int {
	switch {
	case slices.Contains(floors, contestant):
		return 0
	case slices.Contains(ours, contestant):
		return 1
	default:
		return 2
	}
}

func list(words string) []string { return strings.Fields(words) }

var (
	upgrades, foreignUpgrades = list("side-by-side handover recreate"),
		list("side-by-side-goplugin handover-goplugin recreate-goplugin")

	managers = list("watcher runtime")
	p1Sizes  = list("appear=listen/registered=0 appear=rename/registered=0 appear=listen/registered=5000 appear=rename/registered=5000")
	bulks    = list("plugins=1000 plugins=5000")
	bulkGoal = []goal{
		{Params: bulks, Unit: "wall-ms", Ours: list("watcher"), Base: list("floor"), Limit: 0.65},
		{Params: bulks, Unit: "wall-ms", Ours: list("runtime"), Base: list("floor"), Limit: 0.8},
		{Params: bulks, Unit: "cpu-ms", Ours: list("watcher"), Base: list("floor"), Limit: 0.45},
		{Params: bulks, Unit: "cpu-ms", Ours: list("runtime"), Base: list("floor"), Limit: 0.6},
		// 30 µs for each plugin.
		{Params: list("plugins=1000"), Unit: "cpu-ms", Ours: list("runtime"), Base: list("watcher"), Limit: 30, Above: true},
		{Params: list("plugins=5000"), Unit: "cpu-ms", Ours: list("runtime"), Base: list("watcher"), Limit: 150, Above: true},
		{Params: bulks, Unit: "peak-MB", Ours: managers, Base: list("kubelet"), Limit: 0.3},
		{Params: list("plugins=5000"), Unit: "peak-MB", Ours: managers, Limit: 60},
		{Params: bulks, Unit: "wall-ms", Ours: list("watcher"), Base: list("floor-http2"), Limit: 1},
		{Params: bulks, Unit: "wall-ms", Ours: list("runtime"), Base: list("floor-http2"), Limit: 1.1},
		{Params: bulks, Unit: "cpu-ms", Ours: list("watcher"), Base: list("floor-http2"), Limit: 1},
		{Params: bulks, Unit: "cpu-ms", Ours: list("runtime"), Base: list("floor-http2"), Limit: 1.1},
		{Params: bulks, Unit: "plugins-cpu-ms", Ours: managers, Base: list("floor-http2"), Limit: 1.3},
	}
	bulkUnits = list("wall-ms cpu-ms plugins-cpu-ms peak-MB")
	events    = list("subscribers=1 subscribers=10 subscribers=100 subscribers=10000")
	callers   = list("callers=64 callers=256")
	launches  = list("host host-ticket launcher launcher-state")
	startGoal = []goal{
		{Params: []string{""}, Unit: "first-call-µs", Ours: launches, Base: list("bare"), Limit: 1.1},
		{Params: []string{""}, Unit: "first-call-µs", Ours: list("launcher-state"), Base: list("bare"), Limit: 1.08},
		{Params: []string{""}, Unit: "first-call-µs", Ours: launches, Base: list("go-plugin"), Limit: 1},
	}
	startUnits    = list("first-call-µs first-call-p99-µs")
	registrations = list("by=strace/work=registration by=perf/work=registration")
	lives         = list("by=strace/work=launch by=perf/work=launch")
	groups        = list("bbolt-group bbolt-batch50µs bbolt-batch200µs bbolt-batch1ms")
)

var rows = []row{
	{
		File: "p1", Name: "P1", Title: "From the socket to the registration", Base: "floor",
		Units: list("register-µs register-p99-µs told-µs told-p99-µs"), Goals: []goal{
			{Params: p1Sizes, Unit: "register-µs", Ours: managers, Base: list("floor"), Limit: 0.8},
			{Params: p1Sizes, Unit: "register-p99-µs", Ours: managers, Base: list("floor"), Limit: 3},
		},
	},
	{File: "p2", Name: "P2", Title: "Many plugins at once", Base: "floor", Units: bulkUnits, Goals: bulkGoal},
	{File: "p2-one", Name: "P2-one", Title: "Many plugins at once, on one processor", Base: "floor", Units: bulkUnits, Goals: bulkGoal},
	{File: "p3", Name: "P3", Title: "Many plugins at the start", Base: "floor", Units: bulkUnits, Goals: bulkGoal},
	{File: "p3-one", Name: "P3-one", Title: "Many plugins at the start, on one processor", Base: "floor", Units: bulkUnits, Goals: bulkGoal},
	{
		File: "p4", Name: "P4", Title: "A plugin goes, or is replaced", Base: "floor",
		Units: list("deregister-µs deregister-p99-µs replace-µs replace-p99-µs"), Goals: []goal{
			{Params: []string{""}, Unit: "deregister-µs", Ours: managers, Base: list("floor"), Limit: 3},
			{Params: []string{""}, Unit: "replace-µs", Ours: managers, Base: list("floor"), Limit: 1.5},
		},
	},
	{
		File: "p5", Name: "P5", Title: "Nothing to do", Base: "idle", Units: list("cpu-ms/min"), Goals: []goal{{
			Params: list("registered=1000 registered=5000"), Unit: "cpu-ms/min", Ours: managers, Base: list("idle"), Limit: 12, Above: true,
		}},
	},
	{
		File: "p6", Name: "P6", Title: "Register, durable, one caller", Base: "bbolt", Units: list("register-µs register-p99-µs"),
		Goals: []goal{{
			Params: list("registered=10 registered=100 registered=1000 registered=5000 registered=10000"),
			Unit:   "register-µs", Ours: list("patchbay"), Base: list("bbolt"), Limit: 1.2,
		}},
	},
	{
		File: "p7", Name: "P7", Title: "Register, durable, many callers", Base: "bbolt-group", Units: list("register/s"),
		Goals: []goal{{Params: callers, Unit: "register/s", Ours: list("patchbay"), Base: groups, Limit: 0.8, AtLeast: true}},
	},
	{
		File: "p8", Name: "P8", Title: "Dispense", Base: "memory", Units: list("dispense-ns allocs/dispense"), Goals: []goal{
			{Params: list("cores=1/registered=10000 cores=2/registered=10000"), Unit: "dispense-ns", Ours: list("patchbay"), Limit: 60},
			{Params: list("cores=1/registered=10000 cores=2/registered=10000"), Unit: "allocs/dispense", Ours: list("patchbay"), Limit: 0},
			{
				Params: list("cores=2/registered=10000"), Unit: "dispense-ns", Ours: list("patchbay"), Base: list("patchbay"),
				BaseParams: "cores=1/registered=10000", Limit: 1,
			},
		},
	},
	{
		File: "p9", Name: "P9", Title: "Wait for a plugin, and learn of a change", Base: "memory",
		Units: list("wait-µs wait-p99-µs event-µs event-p99-µs events"), Goals: []goal{
			{Params: []string{""}, Unit: "wait-µs", Ours: list("patchbay"), Limit: 100},
			{Params: events, Unit: "event-µs", Ours: list("patchbay patchbay-stuck"), Base: list("memory"), Limit: 2},
		},
	},
	{File: "p10", Name: "P10", Title: "From the launch to the first call", Base: "bare", Units: startUnits, Goals: startGoal},
	{
		File: "p10-one", Name: "P10-one", Title: "From the launch to the first call, on one processor", Base: "bare", Units: startUnits,
		Goals: startGoal,
	},
	{File: "steps", Name: "Steps", Title: "From the launch to the first call, step by step", Base: "end", Units: list("at-µs next-µs")},
	{
		File: "p11", Name: "P11", Title: "Calls", Base: "bare", Units: list("µs/call calls/s"), Goals: []goal{{
			Params: list("callers=1 callers=64"), Unit: "µs/call", Ours: list("host launcher"), Base: list("bare"), Limit: 1.05,
		}},
	},
	{
		File: "p12", Name: "P12", Title: "Admission", Units: list("checks/s check-µs check-ns allocs/check"), Goals: []goal{
			{Params: list("pending=10000"), Unit: "checks/s", Ours: list("host"), Limit: 150_000, AtLeast: true},
			{Params: list("kept=1"), Unit: "check-ns", Ours: list("host"), Limit: 100},
			{Params: list("kept=1"), Unit: "allocs/check", Ours: list("host"), Limit: 0},
		},
	},
	{
		File: "p13", Name: "P13", Title: "What plugins print", Base: "bare",
		Units: list("read-Mlines/s handed-on-Mlines/s MB-read/s write-max-ms full full-max-ms"), Goals: []goal{
			{
				Params: list("lines=text lines=json"), Unit: "read-Mlines/s", Ours: list("host"), Base: list("bare"), Limit: 0.95, AtLeast: true,
			},
			{
				Params: list("lines=text"), Unit: "handed-on-Mlines/s", Ours: list("host"), Base: list("bare"), BaseUnit: "read-Mlines/s",
				Limit: 0.9, AtLeast: true,
			},
			{Params: list("lines=json"), Unit: "handed-on-Mlines/s", Ours: list("host"), Base: list("go-plugin"), Limit: 2.5, AtLeast: true},
			{Params: list("lines=flood"), Unit: "MB-read/s", Ours: list("host"), Base: list("bare"), Limit: 0.8, AtLeast: true},
		},
	},
	{
		File: "p14", Name: "P14", Title: "What a plugin holds", Base: "bare",
		Units: list("live-kB/plugin resident-kB/plugin goroutines/plugin descriptors/plugin empty-MB"), Goals: []goal{
			{Params: list("registered=1000 registered=5000"), Unit: "live-kB/plugin", Ours: managers, Base: list("kubelet"), Limit: 1},
			{
				Params: list("launched=50"), Unit: "live-kB/plugin", Ours: list("host launcher launcher-state"), Base: list("go-plugin"), Limit: 1,
			},
			{Params: list("admission-idle=10000"), Unit: "live-kB/plugin", Ours: list("host"), Limit: 10},
		},
	},
	{
		File: "p16", Name: "P16", Title: "An upgrade under load", Base: "steady",
		Units: list("call-µs call-p99-µs call-max-µs failed"), Goals: []goal{
			{Params: list("callers=64"), Unit: "failed", Ours: slices.Concat(upgrades, foreignUpgrades), Limit: 0},
			{Params: list("callers=64"), Unit: "call-p99-µs", Ours: upgrades, Base: list("steady"), Limit: 3},
			{Params: list("callers=64"), Unit: "call-p99-µs", Ours: foreignUpgrades, Base: list("steady-goplugin"), Limit: 3},
		},
	},
	{
		File: "p17", Name: "P17", Title: "Plugins on demand", Base: "configured-5",
		Units: list("resident-MB shared-MB processes host-MB host-live-MB goroutines descriptors"), Goals: []goal{
			{Params: list("used=5"), Unit: "resident-MB", Ours: list("configured-500"), Base: list("configured-5"), Limit: 1.1},
			{Params: list("used=5"), Unit: "processes", Ours: list("configured-500"), Base: list("configured-5"), Limit: 1.1},
		},
	},
	{
		File: "p19", Name: "P19", Title: "The daemon at rest", Base: "grpc-go", Units: list("resident-MB ready-ms program-MB"), Goals: []goal{
			{Params: []string{""}, Unit: "resident-MB", Ours: list("patchbay"), Limit: 35},
			{Params: []string{""}, Unit: "ready-ms", Ours: list("patchbay"), Limit: 100},
			{Params: []string{""}, Unit: "program-MB", Ours: list("patchbay"), Limit: 35},
		},
	},
	{
		File: "p20", Name: "P20", Title: "A flood of canceled calls", Base: "floor", Units: list("of-quiet calls/s quiet-calls/s"), Goals: []goal{
			{Params: list("callers=same callers=other"), Unit: "of-quiet", Ours: list("stable control"), Limit: 0.5, AtLeast: true},
		},
	},
	{
		File: "p21", Name: "P21", Title: "System calls and wake-ups",
		Units: list("syscalls futex epoll-events plugin-syscalls plugin-futex plugin-epoll-events"), Goals: []goal{
			{Params: registrations, Unit: "syscalls", Ours: list("watcher"), Limit: 26},
			{Params: registrations, Unit: "syscalls", Ours: list("runtime"), Limit: 29},
			{Params: registrations, Unit: "futex", Ours: list("watcher"), Limit: 0.8},
			{Params: registrations, Unit: "futex", Ours: list("runtime"), Limit: 1.2},
			{Params: registrations, Unit: "plugin-futex", Ours: managers, Base: list("floor-http2"), Limit: 1.3},
			{Params: lives, Unit: "syscalls", Ours: list("launcher"), Limit: 220},
			{Params: lives, Unit: "syscalls", Ours: list("launcher-state"), Limit: 245},
			{Params: lives, Unit: "futex", Ours: list("launcher"), Base: list("bare"), Limit: 1.2},
			{Params: lives, Unit: "futex", Ours: list("launcher-state"), Base: list("bare"), Limit: 1.35},
			{Params: lives, Unit: "plugin-futex", Ours: list("launcher launcher-state"), Base: list("bare"), Limit: 1.5},
		},
	},
	{File: "list", Name: "List", Title: "List all plugins", Base: "memory", Units: list("list-µs list-p99-µs")},
	{File: "restore", Name: "Restore", Title: "Start again with plugins in the state file", Base: "bbolt-group", Units: list("restore-ms")},
	{
		File: "proxy", Name: "Proxy", Title: "Calls through a stable socket", Base: "floor", Units: list("µs/call calls/s MiB/s"), Goals: []goal{
			{Params: list("callers=1 callers=64"), Unit: "µs/call", Ours: list("stable"), Base: list("floor"), Limit: 1.1},
			{Params: list("stream=1MiB"), Unit: "MiB/s", Ours: list("stable"), Base: list("floor"), Limit: 1.2, AtLeast: true},
		},
	},
}

var growths = []growth{
	{
		File: "p1", Title: "Register a plugin, with N registered", Axis: "µs", Params: "appear=rename/", Vary: "registered",
		Unit: "register-µs", Contestants: list("floor watcher runtime kubelet"),
	},
	{
		File: "p2", Title: "N plugins at once, wall time of each", Axis: "µs", Vary: "plugins", Unit: "wall-ms", Scale: 1e3, Each: true,
		Contestants: list("floor watcher runtime kubelet"),
	},
	{
		File: "p2", Title: "N plugins at once, processor time of each", Axis: "µs", Vary: "plugins", Unit: "cpu-ms", Scale: 1e3, Each: true,
		Contestants: list("floor watcher runtime kubelet"),
	},
	{
		File: "p3", Title: "N plugins at the start, wall time of each", Axis: "µs", Vary: "plugins", Unit: "wall-ms", Scale: 1e3, Each: true,
		Contestants: list("floor watcher runtime kubelet"),
	},
	{
		File: "p3", Title: "N plugins at the start, processor time of each", Axis: "µs", Vary: "plugins", Unit: "cpu-ms", Scale: 1e3,
		Each: true, Contestants: list("floor watcher runtime kubelet"),
	},
	{
		File: "p6", Title: "Register durable, with N registered", Axis: "µs", Vary: "registered", Unit: "register-µs",
		Contestants: list("bbolt patchbay nomad"),
	},
	{
		File: "p8", Title: "Dispense, with N registered", Axis: "ns", Params: "cores=1/", Vary: "registered", Unit: "dispense-ns",
		Contestants: list("memory patchbay nomad"),
	},
	{
		File: "p9", Title: "An event to N subscribers, time of each", Axis: "µs", Vary: "subscribers", Unit: "event-µs", Each: true,
		Contestants: list("memory patchbay nomad"),
	},
	{
		File: "p14", Title: "Memory in use for each of N registered", Axis: "kB", Vary: "registered", Unit: "live-kB/plugin",
		Contestants: list("watcher runtime kubelet"),
	},
	{
		File: "list", Title: "List N plugins, time of each", Axis: "µs", Vary: "registered", Unit: "list-µs", Each: true,
		Contestants: list("memory patchbay nomad"),
	},
	{
		File: "restore", Title: "Start again with N plugins, time of each", Axis: "µs", Vary: "registered", Unit: "restore-ms", Scale: 1e3,
		Each: true, Contestants: list("bbolt-group patchbay"),
	},
}
