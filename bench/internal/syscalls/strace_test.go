package syscalls

import (
	"maps"
	"strings"
	"testing"
)

// TestStrace: the system calls of a process with two threads, of which the second starts another process with two threads of its own.
func TestStrace(t *testing.T) {
	const output = `10 epoll_pwait(5,  <unfinished ...>
11 futex(0xc000, FUTEX_WAIT_PRIVATE, 0, NULL <unfinished ...>
10 <... epoll_pwait resumed>[{events=EPOLLIN, data={u32=1, u64=1}}], 128, 0, NULL, 0) = 1
10 futex(0xc000, FUTEX_WAKE_PRIVATE, 1) = 1
11 <... futex resumed>)              = 0
11 clone(child_stack=NULL, flags=CLONE_VM|CLONE_PIDFD|CLONE_VFORK|SIGCHLD <unfinished ...>
20 execve("/bin/plugin", [...], 0xc000 /* 9 vars */ <unfinished ...>
11 <... clone resumed>, parent_tid=[12]) = 20
20 <... execve resumed>)             = 0
20 clone3({flags=CLONE_VM|CLONE_THREAD, stack=0x7f}, 88 <unfinished ...>
21 epoll_pwait(4, [], 128, 0, NULL, 0) = 0
20 <... clone3 resumed> => {parent_tid=[21]}, 88) = 21
20 accept4(3, 0xc000, [112], SOCK_CLOEXEC) = -1 EAGAIN (Resource temporarily unavailable)
21 exit_group(0)                     = ?
21 +++ exited with 0 +++
20 +++ exited with 0 +++
10 restart_syscall(<... resuming interrupted read ...> <unfinished ...>
12 futex(0xd000, FUTEX_WAIT_BITSET_PRIVATE, 0, NULL <unfinished ...>
`
	all, err := parseStrace(strings.NewReader(output), 10)
	if err != nil {
		t.Fatal(err)
	}
	check(t, all, []Calls{
		{"", map[string]int{Events: 1, FutexWait: 2, FutexWake: 1, "clone": 1}},
		{"plugin", map[string]int{"execve": 1, "clone3": 1, NoEvents: 1, "accept4": 1, "exit_group": 1}},
	})
}

func check(t *testing.T, all []*Calls, want []Calls) {
	t.Helper()
	if len(all) != len(want) {
		t.Fatalf("%d processes, want %d", len(all), len(want))
	}
	for i, c := range all {
		if c.Program != want[i].Program || !maps.Equal(c.ByName, want[i].ByName) {
			t.Errorf("process %d: %+v, want %+v", i, *c, want[i])
		}
	}
}
