package strace

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The names under which [Calls] counts the system calls that wait, by what they do or return.
const (
	FutexWait = "futex wait"
	FutexWake = "futex wake"
	// Events is a call of epoll_pwait that returned events, NoEvents one that did not: it only looked, or a timer expired.
	Events   = "epoll_pwait with events"
	NoEvents = "epoll_pwait without events"
)

// Calls are the system calls of one process.
type Calls struct {
	Program string // what the process executed while it was traced; empty if nothing
	ByName  map[string]int
}

// thread is what strace printed of one thread.
type thread struct {
	Calls
	pending   string // the beginning of the system call that has not returned
	creator   int    // the thread that created this one; zero if that was not traced
	isProcess bool   // whether the thread was created as the first of a process
}

// threads are the threads of all processes, by number.
type threads map[int]*thread

// parse returns the system calls of each process in what strace printed. The first is the process that was attached to.
func parse(output io.Reader, process int) ([]*Calls, error) {
	seen := threads{}
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		number, line, _ := strings.Cut(lines.Text(), " ")
		id, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("strace printed %q: %w", lines.Text(), err)
		}
		seen.note(id, strings.TrimSpace(line))
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	attached := &Calls{ByName: map[string]int{}}
	all, processes := []*Calls{attached}, map[int]*Calls{process: attached}
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		first := seen.first(id, process)
		of := processes[first]
		if of == nil {
			of = &Calls{ByName: map[string]int{}}
			all, processes[first] = append(all, of), of
		}
		for name, n := range seen[id].ByName {
			of.ByName[name] += n
		}
		if seen[id].Program != "" {
			of.Program = seen[id].Program
		}
	}
	return all, nil
}

func (s threads) get(id int) *thread {
	t := s[id]
	if t == nil {
		t = &thread{Calls: Calls{ByName: map[string]int{}}}
		s[id] = t
	}
	return t
}

// first returns the first thread of a thread's process. A thread whose creation was not traced belongs to the process that was attached to.
func (s threads) first(id, process int) int {
	for !s[id].isProcess {
		if s[id].creator == 0 {
			return process
		}
		id = s[id].creator
	}
	return id
}

// note notes a line of a thread: the beginning of a system call, its end, or both.
func (s threads) note(id int, line string) {
	t := s.get(id)
	if strings.HasPrefix(line, "+++") { // the thread ended
		return
	}
	if _, rest, ok := strings.Cut(line, " resumed>"); ok && strings.HasPrefix(line, "<... ") {
		s.end(id, t.pending, rest)
		return
	}
	call, unfinished := strings.CutSuffix(line, " <unfinished ...>")
	t.begin(call)
	if unfinished {
		t.pending = call
		return
	}
	s.end(id, call, call)
}

// begin counts a system call, unless it is counted by what it returns.
func (t *thread) begin(call string) {
	name, arguments, _ := strings.Cut(call, "(")
	switch name {
	case "restart_syscall", "epoll_pwait", "epoll_pwait2", "epoll_wait":
		return
	case "futex":
		name = FutexWait
		if strings.Contains(arguments, "FUTEX_WAKE") {
			name = FutexWake
		}
	case "execve":
		if _, path, ok := strings.Cut(arguments, `"`); ok {
			t.Program, _, _ = strings.Cut(path, `"`)
		}
	}
	t.ByName[name]++
}

// end notes what a system call returned, which is the number after its last parenthesis.
func (s threads) end(id int, call, line string) {
	_, text, _ := strings.Cut(line[strings.LastIndex(line, ")")+1:], "= ")
	number, _, _ := strings.Cut(text, " ")
	result, err := strconv.Atoi(number)
	succeeded := err == nil && result > 0
	name, arguments, _ := strings.Cut(call, "(")
	switch name {
	case "epoll_pwait", "epoll_pwait2", "epoll_wait":
		name = NoEvents
		if succeeded {
			name = Events
		}
		s[id].ByName[name]++
	case "clone", "clone3", "fork", "vfork":
		if succeeded {
			created := s.get(result)
			created.creator, created.isProcess = id, !strings.Contains(arguments, "CLONE_THREAD")
		}
	}
}
