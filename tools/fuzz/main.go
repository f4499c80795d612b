// Command fuzz runs the fuzz targets of the main module and of the examples, each for a budget of processor time, and keeps what they find.
//
//	fuzz [-cpu 10m] [-run REGEXP] [-slice 1m] DIR
//
// DIR is the root of the repository. Inputs that reach new code are added to the archive testdata/TARGET.txtar of the package, which
// [fuzzcorpus.Add] reads, so every run of the tests tries them again. An input that fails is written to testdata/fuzz. The time spent on
// each target is in .ci/fuzz.json, which is written after each slice: a run that was stopped resumes there. The status is 1 if a target
// failed.
//
// [fuzzcorpus.Add]: https://pkg.go.dev/github.com/patchbay-dev/patchbay/internal/fuzzcorpus#Add
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/tools/txtar"
)

// target is what was spent on one fuzz target so far, and what it gave.
type target struct {
	CPU        time.Duration `json:"cpuNanoseconds"`
	Executions int64         `json:"executions"`
	Corpus     int           `json:"corpus"`
	Failed     bool          `json:"failed,omitempty"`
}

func main() {
	budget := flag.Duration("cpu", 10*time.Minute, "processor `time` for each target, earlier runs included")
	slice := flag.Duration("slice", time.Minute, "`time` of one run of the fuzzer; a run that is stopped loses at most this")
	only := flag.String("run", "", "fuzz only targets whose PACKAGE.NAME matches this `regexp`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	pattern, err := regexp.Compile(*only)
	if err == nil && flag.NArg() != 1 {
		err = errors.New("name the directory of the module")
	}
	if err == nil {
		err = run(ctx, flag.Arg(0), pattern, *budget, *slice)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, only *regexp.Regexp, budget, slice time.Duration) error {
	book := filepath.Join(dir, ".ci", "fuzz.json")
	spent := map[string]*target{}
	if data, err := os.ReadFile(book); err == nil {
		if err := json.Unmarshal(data, &spent); err != nil {
			return fmt.Errorf("reading %s: %w; delete it to start over", book, err)
		}
	}
	var names []string
	for _, module := range []string{".", "examples"} {
		more, err := targets(ctx, dir, module)
		if err != nil {
			return err
		}
		names = append(names, more...)
	}
	slices.Sort(names)
	// The records of targets that were removed or renamed are dropped.
	maps.DeleteFunc(spent, func(name string, _ *target) bool { return !slices.Contains(names, name) })
	temp, err := os.MkdirTemp("", "fuzz")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	save := func() error {
		data, err := json.MarshalIndent(spent, "", "\t")
		if err != nil {
			return err
		}
		return os.WriteFile(book, append(data, '\n'), 0o644)
	}
	failed := false
	for _, name := range names {
		if !only.MatchString(name) {
			continue
		}
		t := spent[name]
		if t == nil {
			t = new(target)
			spent[name] = t
		}
		if t.CPU >= budget && !t.Failed {
			continue
		}
		if err := t.spend(ctx, dir, temp, name, budget, slice, save); err != nil {
			return err
		}
		failed = failed || t.Failed
	}
	if failed {
		return errors.New("a target failed, see above; its input is in testdata/fuzz")
	}
	return nil
}

// spend fuzzes the target of a name until its budget is spent or it fails. It calls save after each slice.
func (t *target) spend(ctx context.Context, dir, temp, name string, budget, slice time.Duration, save func() error) error {
	binary := filepath.Join(temp, "fuzz.test")
	dot := strings.LastIndex(name, ".")
	pkg, fn := filepath.Join(dir, name[:dot]), name[dot+1:]
	if err := build(ctx, pkg, fn, binary); err != nil {
		return err
	}
	cache := filepath.Join(temp, filepath.FromSlash(name))
	for t.Failed = false; t.CPU < budget && !t.Failed; {
		err := t.fuzz(ctx, binary, pkg, fn, cache, slice)
		if err := errors.Join(err, keep(filepath.Join(pkg, "testdata", fn+".txtar"), filepath.Join(cache, fn))); err != nil {
			return err
		}
		fmt.Printf("%s: %s of processor time, %d executions, %d inputs\n", name, t.CPU.Round(time.Second), t.Executions, t.Corpus)
		if err := save(); err != nil {
			return err
		}
	}
	return nil
}

// build compiles the tests of a package for one target. It is separate, so that compiling does not count as fuzzing.
func build(ctx context.Context, pkg, fn, binary string) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-fuzz", "^"+fn+"$", "-o", binary, ".")
	cmd.Dir = pkg
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the tests of %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// keep adds the inputs in a directory to an archive, in the order of their names.
func keep(archive, dir string) error {
	found, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	kept, err := txtar.ParseFile(archive)
	if errors.Is(err, fs.ErrNotExist) {
		kept, err = new(txtar.Archive), nil
	}
	if err != nil {
		return err
	}
	for _, entry := range found {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		kept.Files = append(kept.Files, txtar.File{Name: entry.Name(), Data: data})
	}
	slices.SortFunc(kept.Files, func(a, b txtar.File) int { return strings.Compare(a.Name, b.Name) })
	// The name of an input is its hash.
	kept.Files = slices.CompactFunc(kept.Files, func(a, b txtar.File) bool { return a.Name == b.Name })
	return errors.Join(os.MkdirAll(filepath.Dir(archive), 0o755), os.WriteFile(archive, txtar.Format(kept), 0o644))
}

// targets lists the fuzz targets of a module in dir, as PACKAGE.NAME, with the package relative to dir.
func targets(ctx context.Context, dir, module string) ([]string, error) {
	const files = "{{range .TestGoFiles}}{{$.Dir}}/{{.}}\n{{end}}{{range .XTestGoFiles}}{{$.Dir}}/{{.}}\n{{end}}"
	list := exec.CommandContext(ctx, "go", "list", "-f", files, "./...")
	list.Dir = filepath.Join(dir, module)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the packages: %w", err)
	}
	root, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	fuzz := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	var names []string
	for _, file := range strings.Fields(string(out)) {
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		pkg, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return nil, err
		}
		for _, m := range fuzz.FindAllSubmatch(source, -1) {
			names = append(names, filepath.ToSlash(pkg)+"."+string(m[1]))
		}
	}
	return names, nil
}

var progress = regexp.MustCompile(`execs: (\d+) .*\(total: (\d+)\)`)

// fuzz runs the test binary in the directory of its package for one slice of time on all processors and adds the time that it took. The
// inputs that reach new code are in the directory cache.
func (t *target) fuzz(ctx context.Context, binary, dir, fn, cache string, slice time.Duration) error {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary,
		"-test.run", "^$", "-test.fuzz", "^"+fn+"$", "-test.fuzztime", slice.String(),
		// By default each input that reaches new code is minimized for up to a minute, in which few executions count.
		"-test.fuzzminimizetime", "100x",
		"-test.fuzzcachedir", cache, "-test.parallel", strconv.Itoa(runtime.NumCPU()))
	cmd.Dir = dir
	var output bytes.Buffer
	cmd.Stdout = &output
	cmd.Stderr = &output
	// The fuzzer saves what it has when it is interrupted, as it is by a terminal too.
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(os.Interrupt) })()
	runErr := cmd.Run()
	if cmd.ProcessState == nil {
		return runErr
	}
	t.CPU += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	late := !bytes.Contains(output.Bytes(), []byte("Failing input written")) &&
		bytes.Contains(output.Bytes(), []byte("    context deadline exceeded\n"))
	executions, corpus := counts(&output, os.Stdout)
	t.Executions += executions
	t.Corpus = max(t.Corpus, corpus)
	// Before Go 1.27 the end of the time may count as a failure, of which no input is written (go.dev/issue/75804).
	t.Failed = runErr != nil && ctx.Err() == nil && !late
	return context.Cause(ctx)
}

// counts returns the last counts that the fuzzer printed, and writes its other lines to rest.
func counts(output io.Reader, rest io.Writer) (executions int64, corpus int) {
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		line := lines.Text()
		if m := progress.FindStringSubmatch(line); m != nil {
			executions, _ = strconv.ParseInt(m[1], 10, 64)
			corpus, _ = strconv.Atoi(m[2])
		} else if !strings.HasPrefix(line, "fuzz: elapsed") && !strings.HasPrefix(line, "ok ") && line != "PASS" {
			fmt.Fprintln(rest, line)
		}
	}
	return executions, corpus
}
