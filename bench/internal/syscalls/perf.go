package syscalls

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Perf is a [Tracer] that notes system calls in the kernel, which costs a microsecond for each.
func Perf(ctx context.Context, process int, dir string) (*Trace, error) {
	path := filepath.Join(dir, fmt.Sprintf("perf.%d", process))
	cmd, err := command(ctx, "perf", "record", "-q", "-B", "-N", "-m", "16M", "-e", "raw_syscalls:sys_enter,raw_syscalls:sys_exit",
		"-o", path, "-p", strconv.Itoa(process), "--control=fd:3,4")
	if err != nil {
		return nil, err
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	commands, control, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	answers, answering, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer answers.Close()
	cmd.ExtraFiles = []*os.File{commands, answering} // 3 and 4
	if err := errors.Join(cmd.Start(), commands.Close(), answering.Close()); err != nil {
		return nil, err
	}
	// It answers when it traces. The pipe stays open, or else it would fail.
	if _, err := control.WriteString("ping\n"); err != nil {
		return nil, err
	}
	if _, err := answers.Read(make([]byte, 1)); err != nil {
		return nil, fmt.Errorf("%w: perf: %w\n%s", ErrUnavailable, cmd.Wait(), said.String())
	}
	return &Trace{cmd, func() ([]*Calls, error) {
		if err := control.Close(); err != nil {
			return nil, err
		}
		return readPerf(ctx, path, process)
	}}, nil
}

// readPerf returns the system calls of each process in what perf recorded. The first is the process that was attached to.
func readPerf(ctx context.Context, path string, process int) ([]*Calls, error) {
	names, err := numbers(ctx)
	if err != nil {
		return nil, err
	}
	cmd, err := command(ctx, "perf", "script", "-i", path, "--show-task-events", "-F", "comm,pid,tid,event,trace")
	if err != nil {
		return nil, err
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("perf: %w\n%s", err, said.String())
	}
	if strings.Contains(said.String(), "lost") {
		return nil, fmt.Errorf("perf: %s", said.String())
	}
	return parsePerf(bytes.NewReader(output), process, names)
}

// numbers returns the names of the system calls of this architecture by number.
func numbers(ctx context.Context) (map[string]string, error) {
	cmd, err := command(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys")
	if err != nil {
		return nil, err
	}
	dir, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+runtime.GOARCH+".go"))
	names := map[string]string{}
	for line := range strings.Lines(string(source)) {
		if name, number, ok := strings.Cut(line, "="); ok {
			names[strings.TrimSpace(number)] = strings.ToLower(strings.TrimPrefix(strings.TrimSpace(name), "SYS_"))
		}
	}
	return names, err
}

// parsePerf returns the system calls of each process in what perf printed. The first is the process that was attached to.
func parsePerf(output io.Reader, process int, names map[string]string) ([]*Calls, error) {
	all := newProcesses(process)
	calling := map[string]bool{} // the threads that are in a system call
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		before, event, ok := strings.Cut(lines.Text(), "raw_syscalls:sys_")
		if !ok {
			all.noteTask(lines.Text())
			continue
		}
		fields := strings.Fields(before)
		process, thread, _ := strings.Cut(fields[len(fields)-1], "/")
		of, err := all.find(process)
		if err != nil {
			return nil, fmt.Errorf("perf printed %q: %w", lines.Text(), err)
		}
		// All is printed twice of a thread that began while perf attached.
		enters := strings.HasPrefix(event, "enter")
		if calling[thread] == enters {
			continue
		}
		calling[thread] = enters
		// NR 202 (address, operation, ...), or NR 202 = 1
		_, call, _ := strings.Cut(event, ": NR ")
		number, rest, _ := strings.Cut(call, " ")
		name := cmp.Or(names[number], number)
		if enters {
			of.begin(name, slices.Contains([]string{"1", "81"}, strings.Split(rest, ", ")[1]))
			continue
		}
		result, err := strconv.Atoi(strings.TrimPrefix(rest, "= "))
		if err != nil {
			return nil, fmt.Errorf("perf printed %q: %w", lines.Text(), err)
		}
		of.end(name, result)
	}
	return all.list, lines.Err()
}

// find returns the calls of the process with the number.
func (p *processes) find(number string) (*Calls, error) {
	id, err := strconv.Atoi(number)
	if err != nil {
		return nil, err
	}
	return p.get(id), nil
}

// noteTask notes what a process executes.
func (p *processes) noteTask(line string) {
	if _, executed, ok := strings.Cut(line, "PERF_RECORD_COMM exec: "); ok {
		name, ids, _ := strings.Cut(executed, ":")
		number, _, _ := strings.Cut(ids, "/")
		if of, err := p.find(number); err == nil {
			of.Program = name
		}
	}
}
