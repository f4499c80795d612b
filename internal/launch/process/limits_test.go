//go:build linux

package process

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/launch/cgroupfs"
	"github.com/patchbay-dev/patchbay/plugin"
)

// output runs a shell command and returns its output.
func output(t *testing.T, g *Group, command string, more ...func(*Spec)) string {
	t.Helper()
	spec := Spec{Name: "test", Path: "/bin/sh", Args: []string{"sh", "-c", command}, Env: []string{"PATH=/usr/bin:/bin"}}
	for _, f := range more {
		f(&spec)
	}
	p, err := g.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Error(err)
	}
	errs, _ := io.ReadAll(p.Stderr())
	_, _ = p.Stdout().Close(), p.Stderr().Close()
	<-p.Done()
	if len(errs) > 0 {
		t.Logf("standard error: %s", errs)
	}
	return strings.TrimSpace(string(b))
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("this takes root")
	}
}

func TestOpenFiles(t *testing.T) {
	modes(t, func(t *testing.T, cgroup string) {
		g := newGroup(t, &Group{Cgroup: cgroup})
		const limits = "ulimit -Sn; ulimit -Hn"
		if got := output(t, g, limits, func(s *Spec) { s.Limits.OpenFiles = 77 }); got != "77\n77" {
			t.Errorf("limits are %q", got)
		}
		if got := output(t, g, limits); strings.Contains(got, "77") {
			t.Errorf("without a limit they are %q", got)
		}
	})
}

// TestOpenFilesOfNothing: the error for a program that cannot be executed is the same as without a limit, for any user.
func TestOpenFilesOfNothing(t *testing.T) {
	users := []*User{nil}
	if os.Geteuid() == 0 {
		users = append(users, &User{UID: 12345, GID: 23456})
	}
	g := newGroup(t, &Group{})
	for _, user := range users {
		for path, want := range map[string]error{"/does/not/exist": fs.ErrNotExist, "/etc/passwd": fs.ErrPermission} {
			_, without := g.Start(Spec{Name: "test", Path: path, User: user})
			_, err := g.Start(Spec{Name: "test", Path: path, User: user, Limits: plugin.Limits{OpenFiles: 50}})
			if !errors.Is(err, want) || text(err) != text(without) {
				t.Errorf("error %v, and %v without a limit", err, without)
			}
		}
	}
}

// A process with a limit gets the same environment, arguments and descriptors as any other.
func TestLimitedIsAsAnyOther(t *testing.T) {
	g := newGroup(t, &Group{})
	const command = "echo $0 $1; env; ls /proc/self/fd"
	as := func(files int) func(*Spec) {
		return func(s *Spec) {
			s.Args = []string{"other", "-c", command, "name", "argument"}
			s.Env = []string{"A=1", "PATH=/usr/bin:/bin", "B="}
			s.ExtraFiles = []*os.File{os.Stderr}
			s.Limits.OpenFiles = files
		}
	}
	if diff := cmp.Diff(output(t, g, command, as(0)), output(t, g, command, as(50))); diff != "" {
		t.Error(diff)
	}
}

// TestFewProcessesWithFewFiles: the shim that limits the open files does not count as a process of the program, although it has threads.
func TestFewProcessesWithFewFiles(t *testing.T) {
	needLimits(t, plugin.Limits{Processes: 1})
	modes(t, func(t *testing.T, cgroup string) {
		g := newGroup(t, &Group{Cgroup: cgroup})
		const command = "ulimit -n; /bin/true && echo forked" // the shell would execute a single command without forking
		for range 5 {
			if got := output(t, g, command, func(s *Spec) { s.Limits = plugin.Limits{Processes: 1, OpenFiles: 50} }); got != "50" {
				t.Fatalf("with room for itself only and 50 files it prints %q", got)
			}
		}
	})
}

// TestNoRoomToLimitFiles: if the shim ends before it has limited the open files, Start fails, and the error has the reason.
func TestNoRoomToLimitFiles(t *testing.T) {
	limits := plugin.Limits{Memory: 1 << 20, OpenFiles: 50}
	needLimits(t, plugin.Limits{Memory: 1 << 26})
	_, err := newGroup(t, &Group{}).Start(Spec{Path: "/bin/true", Limits: limits})
	if err == nil || !strings.Contains(err.Error(), "give it more memory") {
		t.Errorf("error %v", err)
	}
}

func TestLimitedLife(t *testing.T) {
	kernels(t, func(t *testing.T, cgroup string, adapt func(*Group)) {
		g := newGroup(t, &Group{Cgroup: cgroup})
		adapt(g)
		p := start(t, g, &role{Exit: 3}, func(s *Spec) { s.Limits.OpenFiles = 100 })
		if err := p.Terminate(t.Context(), Grace{}); text(err) != "exit status 3" {
			t.Error(err)
		}
	})
}

func TestNoNewPrivs(t *testing.T) {
	g := newGroup(t, &Group{})
	const command = "grep NoNewPrivs /proc/self/status"
	for _, wanted := range []bool{false, true, false, true} {
		want := map[bool]string{false: "NoNewPrivs:\t0", true: "NoNewPrivs:\t1"}[wanted]
		if got := output(t, g, command, func(s *Spec) { s.NoNewPrivs = wanted }); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if b, _ := os.ReadFile("/proc/self/status"); !strings.Contains(string(b), "NoNewPrivs:\t0") {
		t.Error("the host has lost its privileges too")
	}
}

func TestUser(t *testing.T) {
	needRoot(t)
	g := newGroup(t, &Group{})
	for _, limit := range []int{0, 64} {
		got := output(t, g, "id -u; id -g; id -G; grep CapEff: /proc/self/status; ulimit -n", func(s *Spec) {
			s.User, s.NoNewPrivs, s.Limits.OpenFiles = &User{UID: 12345, GID: 23456}, true, limit
		})
		want := "12345\n23456\n23456\nCapEff:\t0000000000000000\n"
		if limit > 0 {
			want += itoa(limit)
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("it runs as %q, want %q", got, want)
		}
	}
}

// needLimits skips the test if neither version of cgroups can enforce the limits.
func needLimits(t *testing.T, l plugin.Limits) {
	t.Helper()
	g := newGroup(t, &Group{})
	p, err := g.Start(Spec{Path: "/bin/true", Limits: l})
	if err != nil {
		notTested(t, "limits through cgroups of either version", err)
	}
	drain(p.Stdout(), p.Stderr())
	<-p.Done()
}

// TestLimitsByVersion2 tests the limits of version 2 on machines where TestMemoryAndCPU uses controllers of version 1.
func TestLimitsByVersion2(t *testing.T) {
	const what = "limits through cgroups of version 2: that the controllers memory, cpu and pids are passed on, what memory.max, cpu.max " +
		"and pids.max do, and that nothing is left"
	needCgroup(t)
	own, err := system(t).Unified.Dir()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"memory", "cpu", "pids"} {
		if !slices.Contains(cgroupfs.Controllers(delegated(own)), name) {
			notTested(t, what, "this process's cgroup of version 2 does not have the controller "+name)
		}
	}
	g := newGroup(t, &Group{})
	limits := plugin.Limits{Memory: 1 << 28, CPU: 1500, Processes: 50}
	if _, err := g.Start(Spec{Path: "/does/not/exist", Limits: limits}); errors.Is(err, unix.EBUSY) {
		notTested(t, what, err)
	}
	limited := start(t, g, &role{}, func(s *Spec) { s.Limits = limits })
	c, _ := limited.body.(*child)
	if len(c.v1) > 0 {
		t.Errorf("it is limited by version 1: %q", c.v1)
	}
	pids, _ := os.ReadFile(filepath.Join(c.leaf.dir, "pids.max"))
	want := map[string]string{"memory.max": "268435456", "cpu.max": "150000", "cgroup.procs": itoa(limited.Process.PID())}
	if diff := cmp.Diff(want, limitsOf(t, limited.Process)); diff != "" || strings.TrimSpace(string(pids)) != "50" {
		t.Errorf("%s, processes %s", diff, pids)
	}
	_ = limited.Terminate(t.Context(), Grace{})
	await(t, c.leaf.dir+" is removed", func() bool { _, err := os.Stat(c.leaf.dir); return errors.Is(err, fs.ErrNotExist) })
}

// A process with a limit of one process cannot fork.
func TestProcessesAreBounded(t *testing.T) {
	needLimits(t, plugin.Limits{Processes: 1})
	g := newGroup(t, &Group{})
	const command = "/bin/true && echo forked" // the shell would execute a single command without forking
	if got := output(t, g, command); got != "forked" {
		t.Fatalf("without a limit it prints %q", got)
	}
	p, err := g.Start(Spec{
		Name: "test", Path: "/bin/sh", Args: []string{"sh", "-c", "kill -STOP $$; " + command}, Limits: plugin.Limits{Processes: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	go drain(p.Stderr())
	await(t, "it has stopped itself", func() bool { stat, _ := readStat(p.PID()); return stat.state == 'T' })
	if err := unix.Kill(p.PID(), unix.SIGCONT); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(p.Stdout()); err != nil || len(got) > 0 {
		t.Errorf("it prints %q, %v", got, err)
	}
	<-p.Done()
}

// limitsOf reads the limits of a process.
func limitsOf(t *testing.T, p *Process) map[string]string {
	t.Helper()
	c, ok := p.body.(*child)
	if !ok {
		t.Fatalf("a %T", p.body)
	}
	dirs := slices.Clone(c.v1)
	if c.leaf != nil {
		dirs = append(dirs, c.leaf.dir)
	}
	found := map[string]string{}
	for _, dir := range dirs {
		for _, name := range []string{"memory.max", "memory.limit_in_bytes", "cpu.max", "cpu.cfs_quota_us", "cgroup.procs"} {
			if b, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				key := map[string]string{"memory.limit_in_bytes": "memory.max", "cpu.cfs_quota_us": "cpu.max"}[name]
				if key == "" {
					key = name
				}
				found[key] = strings.TrimSuffix(strings.TrimSpace(string(b)), " 100000")
			}
		}
	}
	return found
}

func TestMemoryAndCPU(t *testing.T) {
	needLimits(t, plugin.Limits{Memory: 1 << 26, CPU: 1000})
	modes(t, func(t *testing.T, cgroup string) {
		g := newGroup(t, &Group{Cgroup: cgroup})
		p := start(t, g, &role{}, func(s *Spec) { s.Limits = plugin.Limits{Memory: 1 << 28, CPU: 1500} })
		want := map[string]string{"memory.max": "268435456", "cpu.max": "150000", "cgroup.procs": itoa(p.Process.PID())}
		if diff := cmp.Diff(want, limitsOf(t, p.Process)); diff != "" {
			t.Error(diff)
		}
		c, _ := p.body.(*child)
		_ = p.Terminate(t.Context(), Grace{})
		for _, dir := range c.v1 {
			await(t, dir+" is removed", func() bool { _, err := os.Stat(dir); return errors.Is(err, fs.ErrNotExist) })
		}
	})
}

// The memory of descendants counts, from the first byte.
func TestMemoryIsBounded(t *testing.T) {
	needLimits(t, plugin.Limits{Memory: 1 << 26, CPU: 1000})
	g := newGroup(t, &Group{})
	const command = "head -c 64M /dev/zero | tail -c 60M | wc -c"
	if got := output(t, g, command); got != "62914560" {
		t.Fatalf("without a limit %q bytes pass", got)
	}
	if got := output(t, g, command, func(s *Spec) { s.Limits.Memory = 16 << 20 }); got != "0" && got != "" {
		t.Errorf("%q bytes pass through a process that may have less", got)
	}
}

// When the host is killed, the watchdog removes the groups of version 1 and the files of the host.
func TestHostIsKilledWithLimits(t *testing.T) {
	needLimits(t, plugin.Limits{Memory: 1 << 26, CPU: 1000})
	modes(t, func(t *testing.T, cgroup string) {
		dir := filepath.Join(t.TempDir(), "private")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "socket")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		proc := (&role{Stay: true, Deaf: true, Children: []*role{{Stay: true, Deaf: true, Setsid: true}}}).spec()
		proc.Limits = plugin.Limits{Memory: 1 << 29, CPU: 1000}
		h := startHostOf(t, hosting{Cgroup: cgroup, Procs: []Spec{proc}, Remove: []string{file, dir}})
		all := h.everyone(t)
		var v1 []string
		for _, place := range system(t).V1 {
			own, _ := place.Dir()
			found, _ := filepath.Glob(filepath.Join(own, "patchbay-"+itoa(h.pid())+"-*"))
			v1 = append(v1, found...)
		}
		if _, err := os.Stat(file); err != nil {
			t.Fatal(err)
		}
		h.kill(t)
		awaitEnds(t, all)
		for _, path := range append(v1, dir) {
			await(t, path+" is removed", func() bool { _, err := os.Stat(path); return errors.Is(err, fs.ErrNotExist) })
		}
	})
}

func system(t *testing.T) cgroupfs.System {
	t.Helper()
	s, err := cgroupfs.Self()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// tree is a cgroup file system of plain files: DIR/host/patchbay/1 is the leaf, and the groups in DIR/v1 are of version 1.
func tree(t *testing.T, controllers map[string]string) (dir string, leaf *cgroup) {
	t.Helper()
	dir = t.TempDir()
	leaf = &cgroup{dir: filepath.Join(dir, "host/patchbay/1")}
	for _, made := range []string{leaf.dir, filepath.Join(dir, "v1/memory"), filepath.Join(dir, "v1/cpu"), filepath.Join(dir, "v1/pids")} {
		if err := os.MkdirAll(made, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for below, list := range controllers {
		if err := os.WriteFile(filepath.Join(dir, below, "cgroup.controllers"), []byte(list+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, leaf
}

// files reads all files of a tree except the lists of controllers.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == "cgroup.controllers" {
			return err
		}
		b, err := os.ReadFile(path)
		below, _ := filepath.Rel(dir, path)
		found[below] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestConfine(t *testing.T) {
	both := plugin.Limits{Memory: 1 << 20, CPU: 250}
	v1 := map[string]string{
		"v1/memory/x/memory.limit_in_bytes": "1048576", "v1/cpu/x/cpu.cfs_period_us": "100000", "v1/cpu/x/cpu.cfs_quota_us": "25000",
	}
	tests := map[string]struct {
		controllers map[string]string
		limits      plugin.Limits
		noLeaf      bool
		together    bool // both controllers of version 1 in one hierarchy
		v1          []string
		want        map[string]string
		err         string
	}{
		"version 2, passed on already": {
			controllers: map[string]string{"host": "cpu memory", "host/patchbay": "cpu memory", "host/patchbay/1": "cpu memory pids"},
			limits:      both,
			want:        map[string]string{"host/patchbay/1/memory.max": "1048576", "host/patchbay/1/cpu.max": "25000 100000"},
		},
		"version 2, not passed on yet": {
			controllers: map[string]string{"host": "cpu memory"},
			limits:      plugin.Limits{Memory: 1 << 20},
			want: map[string]string{"host/patchbay/1/memory.max": "1048576",
				"host/cgroup.subtree_control": "+memory", "host/patchbay/cgroup.subtree_control": "+memory"},
		},
		"version 2 without controllers, hybrid": {controllers: map[string]string{"host": "hugetlb"}, limits: both, v1: []string{"memory", "cpu"}, want: v1},
		"version 1":                             {limits: both, noLeaf: true, v1: []string{"memory", "cpu"}, want: v1},
		"version 1, in one hierarchy": {limits: both, noLeaf: true, together: true, v1: []string{"memory", "cpu"}, want: map[string]string{
			"v1/memory/x/memory.limit_in_bytes": "1048576", "v1/memory/x/cpu.cfs_period_us": "100000", "v1/memory/x/cpu.cfs_quota_us": "25000",
		}},
		"one by each": {
			controllers: map[string]string{"host/patchbay/1": "memory"}, limits: both, v1: []string{"cpu"},
			want: map[string]string{"host/patchbay/1/memory.max": "1048576", "v1/cpu/x/cpu.cfs_period_us": "100000", "v1/cpu/x/cpu.cfs_quota_us": "25000"},
		},
		"the least of a processor": {
			controllers: map[string]string{"host/patchbay/1": "cpu"}, limits: plugin.Limits{CPU: 1},
			want: map[string]string{"host/patchbay/1/cpu.max": "1000 100000"},
		},
		"no controller anywhere": {
			controllers: map[string]string{"host": "pids"}, limits: both,
			err: "memory cannot be limited here, where the cgroups are version 2: the cgroup DIR/host does not have the controller memory",
		},
		"no cgroups at all": {limits: plugin.Limits{CPU: 1}, noLeaf: true, err: "cpu cannot be limited here, where the cgroups are version 2"},
		"nothing to limit":  {},
		"processes": {
			controllers: map[string]string{"host/patchbay/1": "pids"}, limits: plugin.Limits{Processes: 7},
			want: map[string]string{"host/patchbay/1/pids.max": "7"},
		},
		"processes, version 1": {
			limits: plugin.Limits{Processes: 7}, noLeaf: true, v1: []string{"pids"}, want: map[string]string{"v1/pids/x/pids.max": "8"},
		},
		"files do not count": {controllers: map[string]string{"host": "pids"}, limits: plugin.Limits{OpenFiles: 5}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir, leaf := tree(t, test.controllers)
			if test.noLeaf {
				leaf = nil
			}
			system := cgroupfs.System{Unified: &cgroupfs.Place{Mount: dir, Root: "/", Own: "/host"}, V1: map[string]cgroupfs.Place{}}
			var wantMade []string
			for _, name := range test.v1 {
				system.V1[name] = cgroupfs.Place{Mount: filepath.Join(dir, "v1", name), Root: "/", Own: "/"}
				wantMade = append(wantMade, filepath.Join(dir, "v1", name, "x"))
			}
			if test.together {
				system.V1["cpu"] = system.V1["memory"]
				wantMade = wantMade[:1]
			}
			made, err := confine(system, leaf, "x", test.limits)
			if got := text(err); !strings.HasPrefix(got, strings.ReplaceAll(test.err, "DIR", dir)) || test.err == "" && err != nil {
				t.Errorf("error %q, want %q", got, test.err)
			}
			if diff := cmp.Diff(wantMade, made); diff != "" {
				t.Error(diff)
			}
			if test.want == nil {
				test.want = map[string]string{}
			}
			if diff := cmp.Diff(test.want, files(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// If a limit cannot be set, the process is not started, and nothing is left.
func TestUnlimitedIsNotStarted(t *testing.T) {
	modes(t, func(t *testing.T, cgroup string) {
		g := newGroup(t, &Group{Cgroup: cgroup})
		start(t, g, &role{}) // so that the watchdog is there
		before := openFiles(t)
		const tooMany = 1 << 40 // more than fs.nr_open
		if _, err := g.Start(Spec{Path: "/bin/true", Limits: plugin.Limits{OpenFiles: tooMany, CPU: 1000}}); err == nil || !strings.Contains(err.Error(), "open files") {
			t.Errorf("error %v", err)
		}
		for fd, file := range openFiles(t) {
			if before[fd] != file {
				t.Errorf("descriptor %s is left, of %s", fd, file)
			}
		}
		for controller, place := range system(t).V1 {
			own, _ := place.Dir()
			if left, _ := filepath.Glob(filepath.Join(own, "patchbay-"+itoa(os.Getpid())+"-*")); len(left) > 0 {
				t.Errorf("left of %s: %q", controller, left)
			}
		}
	})
}
