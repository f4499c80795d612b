package boltstate_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
)

// writerEnv is the environment variable with the path of a state file to which the test binary writes.
const writerEnv = "PATCHBAY_BOLTSTATE_TEST_WRITER"

// runWriter registers and deregisters plugins without end and prints "+name" after each registration, and "-name" before each
// deregistration.
func runWriter(path string) {
	store, err := boltstate.Open(path)
	if err != nil {
		fmt.Println("!", err)
		os.Exit(1)
	}
	registry, err := dynamicplugins.Open(store, nil)
	if err != nil {
		fmt.Println("!", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	for w := range 8 {
		go func() {
			for i := 0; ; i++ {
				p := info(os.Getpid()%1000*1_000_000 + w*100_000 + i)
				if err := registry.RegisterPlugin(p); err != nil {
					fmt.Println("!", err)
				}
				fmt.Println("+" + p.Name)
				if i%3 == 0 {
					fmt.Println("-" + p.Name)
					if err := registry.DeregisterPlugin(p.Type, p.Name, p.AllocID); err != nil {
						fmt.Println("!", err)
					}
				}
			}
		}()
	}
	select {}
}

// TestCrash kills a writer at random times, and checks that all acknowledged changes are in the file.
func TestCrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	must := make(map[string]bool)
	for round := range 12 {
		ready := "ready"
		if round%2 == 1 {
			ready = "+" // on a busy machine, the first acknowledgement may be late
		}
		for line := range strings.Lines(crash(t, path, ready, time.Duration(rand.IntN(60))*time.Millisecond)) {
			name, whole := strings.CutSuffix(line[1:], "\n")
			switch {
			case !whole: // the writer was killed within a line
			case line[0] == '+':
				must[name] = true
			case line[0] == '-':
				delete(must, name)
			case line[0] == '!':
				t.Fatal(line)
			}
		}
		names := storedNames(t, path)
		for name := range must {
			if !names[name] {
				t.Fatalf("%s was acknowledged and is gone", name)
			}
		}
	}
	if len(must) == 0 {
		t.Fatal("the writer never wrote anything")
	}
}

// crash runs a writer on path, kills it some time after it has printed a line that begins with ready, and returns its output without
// "ready".
func crash(t *testing.T, path, ready string, after time.Duration) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), writerEnv+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	var printed strings.Builder
	for line := ""; !strings.HasPrefix(line, ready); {
		if line, err = lines.ReadString('\n'); err != nil || line[0] == '!' {
			t.Fatalf("writer: %q, %v", line, err)
		}
		if line != "ready\n" {
			printed.WriteString(line)
		}
	}
	killer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer killer.Stop()
	_, _ = lines.WriteTo(&printed)
	_ = cmd.Wait() // the error is that it was killed
	return printed.String()
}
