package syscalls

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Strace is a [Tracer] that stops a process twice for each system call. A process that is traced is slow, and the Go runtime, to which its
// system calls seem to block, wakes more threads.
func Strace(ctx context.Context, process int, dir string) (*Trace, error) {
	path := filepath.Join(dir, fmt.Sprintf("strace.%d", process))
	cmd, err := command(ctx, "strace", "-f", "-s", "0", "-e", "trace=!nanosleep,clock_nanosleep", "-e", "signal=none", "-o", path,
		"-p", strconv.Itoa(process))
	if err != nil {
		return nil, err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	calls := func() ([]*Calls, error) {
		output, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer output.Close()
		return parseStrace(output, process)
	}
	var said strings.Builder
	for lines := bufio.NewScanner(stderr); lines.Scan(); fmt.Fprintln(&said, lines.Text()) {
		if strings.Contains(lines.Text(), " attached") {
			// It names each process that it attaches to, and waits for a reader.
			go func() {
				for lines.Scan() {
				}
			}()
			return &Trace{cmd, calls}, nil
		}
	}
	return nil, fmt.Errorf("%w: strace: %w\n%s", ErrUnavailable, cmd.Wait(), said.String())
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

// parseStrace returns the system calls of each process in what strace printed. The first is the process that was attached to.
func parseStrace(output io.Reader, process int) ([]*Calls, error) {
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
	all := newProcesses(process)
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		of := all.get(seen.first(id, process))
		for name, n := range seen[id].ByName {
			of.ByName[name] += n
		}
		if seen[id].Program != "" {
			of.Program = seen[id].Program
		}
	}
	return all.list, nil
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
	name, arguments, _ := strings.Cut(call, "(")
	if name == "execve" {
		if _, path, ok := strings.Cut(arguments, `"`); ok {
			path, _, _ = strings.Cut(path, `"`)
			t.Program = filepath.Base(path)
		}
	}
	t.begin(name, strings.Contains(arguments, "FUTEX_WAKE"))
	if unfinished {
		t.pending = call
		return
	}
	s.end(id, call, call)
}

// end notes what a system call returned, which is the number after its last parenthesis.
func (s threads) end(id int, call, line string) {
	_, text, _ := strings.Cut(line[strings.LastIndex(line, ")")+1:], "= ")
	number, _, _ := strings.Cut(text, " ")
	result, err := strconv.Atoi(number)
	if err != nil {
		result = 0 // it did not return
	}
	name, arguments, _ := strings.Cut(call, "(")
	s[id].end(name, result)
	if slices.Contains([]string{"clone", "clone3", "fork", "vfork"}, name) && result > 0 {
		created := s.get(result)
		created.creator, created.isProcess = id, !strings.Contains(arguments, "CLONE_THREAD")
	}
}
