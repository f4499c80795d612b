package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// scripts are the first five minutes of each kind of user, and how each ends.
var scripts = map[string]string{
	"host-author": "hello Ada\n",
	"csi-author":  `"nodeId":`,
	"operator":    "{}\n",
}

// effort counts what a script has its user type: commands, and lines of files.
func effort(script string) (commands, lines int) {
	inFile := false
	for line := range strings.SplitSeq(script, "\n") {
		switch {
		case line == "END":
			inFile = false
		case inFile:
			if strings.TrimSpace(line) != "" {
				lines++
			}
		case strings.HasPrefix(line, "cat > "):
			inFile = true
		case line == "", line[0] == '#', strings.HasPrefix(line, "set "), strings.HasPrefix(line, "trap "):
		default:
			commands++
		}
	}
	return commands, lines
}

// TestFirstFiveMinutes runs each script in an empty directory, and compares what it takes with README and with the page that tells of it.
func TestFirstFiveMinutes(t *testing.T) {
	for name, end := range scripts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, err := filepath.Abs(filepath.Join("../../docs/tutorials/five-minutes", name+".sh"))
			if err != nil {
				t.Fatal(err)
			}
			script, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			commands, lines := effort(string(script))
			for _, page := range []string{"../../README.md", "../../docs/explanation/first-five-minutes.md"} {
				text, err := os.ReadFile(page)
				if row := fmt.Sprintf("%s.sh) | %d | %d |", name, commands, lines); err != nil || !strings.Contains(string(text), row) {
					t.Errorf("%s (%v) does not have the row %q", page, err, row)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			run := exec.CommandContext(ctx, path)
			run.Dir, run.Env, run.WaitDelay = emptyDir(t), userOf(t), time.Second
			began := time.Now()
			printed, err := run.CombinedOutput()
			if err != nil || !strings.Contains(string(printed), end) {
				t.Fatalf("the script ended with %v, without %q:\n%s", err, end, printed)
			}
			t.Logf("%d commands, %d lines, %v", commands, lines, time.Since(began).Round(100*time.Millisecond))
		})
	}
}
