package syscalls

import (
	"strings"
	"testing"
)

// TestPerf: the system calls of a process with two threads, of which the second is noted twice, and of the process that it starts.
func TestPerf(t *testing.T) {
	const output = `            host     0/0     PERF_RECORD_COMM: host:10/10
            host    10/11    raw_syscalls:sys_exit: NR 202 = 0
            host    10/10   raw_syscalls:sys_enter: NR 281 (5, 7ffc, 80, 0, 0, 0)
            host    10/11   raw_syscalls:sys_enter: NR 202 (c000, 81, 1, 0, 0, 0)
            host    10/11   raw_syscalls:sys_enter: NR 202 (c000, 81, 1, 0, 0, 0)
            host    10/10    raw_syscalls:sys_exit: NR 281 = 2
            host    10/11    raw_syscalls:sys_exit: NR 202 = 1
            host    10/11    raw_syscalls:sys_exit: NR 202 = 1
            host    10/11   raw_syscalls:sys_enter: NR 202 (c000, 80, 0, 0, 0, 0)
            host    10/10  PERF_RECORD_FORK(20:20):(10:11)
            host    20/20   raw_syscalls:sys_enter: NR 59 (c000, c100, c200, 0, 0, 0)
          plugin    20/20  PERF_RECORD_COMM exec: plugin:20/20
          plugin    20/20    raw_syscalls:sys_exit: NR 59 = 0
          plugin    20/20   raw_syscalls:sys_enter: NR 281 (4, 7ffc, 80, 0, 0, 0)
          plugin    20/20    raw_syscalls:sys_exit: NR 281 = -4
          plugin    20/20   raw_syscalls:sys_enter: NR 35 (7ffc, 0, 0, 0, 0, 0)
          plugin    20/20    raw_syscalls:sys_exit: NR 35 = 0
          plugin    20/20   raw_syscalls:sys_enter: NR 999 (0, 0, 0, 0, 0, 0)
`
	all, err := parsePerf(strings.NewReader(output), 10,
		map[string]string{"35": "nanosleep", "59": "execve", "202": "futex", "281": "epoll_pwait"})
	if err != nil {
		t.Fatal(err)
	}
	check(t, all, []Calls{
		{"", map[string]int{Events: 1, FutexWait: 1, FutexWake: 1}},
		{"plugin", map[string]int{"execve": 1, NoEvents: 1, "999": 1}},
	})
}
