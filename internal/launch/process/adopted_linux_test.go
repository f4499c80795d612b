package process

import (
	"context"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// beFirst makes this process, which is the first of a PID namespace, see the processes of that, and has it reap those that it adopts.
func beFirst() {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		panic(err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		panic(err)
	}
	go ReapAdopted(context.Background())
}

// TestAdoptedAreReaped: as the first process of a container a host keeps no zombie of what its processes leave behind, and still learns how
// its own processes end.
func TestAdoptedAreReaped(t *testing.T) {
	needRoot(t)
	modes(t, func(t *testing.T, cgroup string) {
		left := &role{Children: []*role{{Setsid: true, Silent: true, Stay: true}}, Leave: true, Exit: 3}
		stays := &role{}
		as := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
		h := hosting{Cgroup: cgroup, First: true}
		for range 5 {
			h.Procs = append(h.Procs, left.spec())
		}
		h.Procs = append(h.Procs, stays.spec())
		host := startHostAs(t, h, as)
		await(t, "a host with two children: its watchdog and the process that runs, or the reaper of that", func() bool {
			return countChildren(host.pid()) == 2
		})
	})
}

// countChildren returns how many processes have this parent, zombies included.
func countChildren(parent int) (n int) {
	for _, s := range allStats() {
		if s.parent == parent {
			n++
		}
	}
	return n
}
