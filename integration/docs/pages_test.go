package docs

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// marked says how many blocks need what no test can count on. They are checked as far as they can be: the syntax, the flags of "patchbay"
// and the files of this repository that they name. Whoever adds one that could run instead, makes this page's promise smaller.
var marked = map[string]int{
	"cluster": 1, "container-engine": 3, "etcd": 9, "machine": 16, "minutes": 1, "node": 2, "package-manager": 2, "release": 2, "systemd": 6,
}

// TestPages runs every block of code of docs and the examples' pages, in its order, in a shell of the page that begins in an empty directory.
// TestReadme does so with README.
func TestPages(t *testing.T) {
	found, ran := map[string]int{}, 0
	for _, page := range pages(t) {
		all := blocks(t, page)
		if len(all) == 0 {
			continue
		}
		for _, b := range all {
			if what := b.words["needs"]; what != "" {
				found[what]++
			} else {
				ran++
			}
		}
		name, _ := filepath.Rel("../..", page)
		if name == readme { // TestReadme
			continue
		}
		t.Run(strings.ReplaceAll(name, "/", "-"), func(t *testing.T) {
			t.Parallel()
			runPage(t, all)
		})
	}
	if !maps.Equal(found, marked) {
		t.Errorf("blocks that are marked: %v, this test knows of %v", found, marked)
	}
	t.Logf("%d blocks ran or were compiled or checked; marked, and checked as far as can be, were %v", ran, found)
}

// isGuide says that a page has whole programs, of other modules too, which TestGuides compiles and runs.
func isGuide(page string) bool { return strings.HasPrefix(filepath.Base(page), "coming-from-") }

func runPage(t *testing.T, all []block) {
	sessions := map[string]*shell{}
	shellOf := func(where string) *shell {
		if sessions[where] == nil {
			sessions[where] = newShell(t, emptyDir(t), userOf(t))
			if where == "clone" {
				if printed, code := sessions[where].run("git clone -q " + repository + " && cd patchbay"); code != "0" {
					t.Fatalf("cannot clone: %s", printed)
				}
			}
		}
		return sessions[where]
	}
	excerpts := 0
	for _, b := range all {
		s := shellOf(b.words["in"])
		b.writeFile(t, s)
		switch b.language {
		case "console", "sh":
			if b.words["needs"] != "" {
				b.checkCommands(t)
			} else {
				b.runCommands(t, s)
			}
		case "go":
			if b.file() == "" && !isGuide(b.page) {
				excerpts++
				b.compile(t, excerpts)
			}
		case "yaml":
			b.checkConfiguration(t)
		case "json":
			if !json.Valid([]byte(b.content())) {
				t.Errorf("%s:%d: this is no JSON", b.page, b.line)
			}
		case "proto": // TestProtocolPageShowsTheProtocol compares it with the one that the example in Node.js loads
		case "javascript", "ini":
			if b.words["needs"] == "" {
				t.Errorf("%s:%d: nothing runs a block of %q: say what it needs", b.page, b.line, b.language)
			}
		case "text": // a drawing, or what a file or a screen holds
		default:
			t.Errorf("%s:%d: nothing runs a block of %q: write console for commands, text for what is not code", b.page, b.line, b.language)
		}
	}
}

// writeFile writes the file that the block is, if it is one.
func (b block) writeFile(t *testing.T, in *shell) {
	t.Helper()
	if name := b.file(); name != "" {
		printed, code := in.run("cat > " + name + " << 'END OF FILE'\n" + b.content() + "END OF FILE")
		if code != "0" {
			t.Fatalf("%s:%d: cannot write the file: %s", b.page, b.line, printed)
		}
	}
}

// ofTheShell is what a shell says of the ends of what it started.
var ofTheShell = regexp.MustCompile(`(?m)^\S*bash: line \d+: +\d+ .*\n`)

// looks are commands that only look. They are repeated until they print what the page shows: what takes a reader a second to type comes
// at once here.
var looks = regexp.MustCompile(`^patchbay (list|status|events|wait|call|logs|devices list|fleet)\b`)

func (b block) runCommands(t *testing.T, in *shell) {
	t.Helper()
	steps, shown := b.steps(t)
	for _, s := range steps {
		if strings.HasPrefix(s.command, "patchbay run ") {
			_, code := in.run(`test -n "$PATCHBAY_CONTROL_SOCKET" || grep -q "^controlSocket:" patchbay.yaml`)
			if code != "0" || !regexp.MustCompile(`--(state|config)\b.*&$`).MatchString(s.command) {
				t.Fatalf("%s:%d: %s: this would be the daemon of the machine, or run forever", b.page, s.line, s.command)
			}
		}
		fails := len(s.output) > 0 && strings.HasPrefix(s.output[len(s.output)-1], "patchbay: ")
		for end := time.Now().Add(30 * time.Second); ; {
			printed, code := in.run(s.command)
			printed = ofTheShell.ReplaceAllString(printed, "")
			if fails == (code != "0") && (!shown || s.matches(printed)) {
				break
			}
			if !looks.MatchString(s.command) || time.Now().After(end) {
				t.Fatalf("%s:%d: %s: exit code %s\n%s\nThe page shows:\n%s", b.page, s.line, s.command, code, printed, strings.Join(s.output, "\n"))
			}
			time.Sleep(200 * time.Millisecond) // each look is a process
		}
		if strings.Contains(s.command, "--for deregistered") {
			time.Sleep(time.Second) // as a reader does, who takes longer than this shell: the socket that a dead plugin leaves is tried again
		}
	}
}

// checkCommands checks commands that cannot be run: that a shell understands them, that "patchbay" knows their flags, and that the files of
// the repository which they name are there.
func (b block) checkCommands(t *testing.T) {
	t.Helper()
	steps, _ := b.steps(t)
	clone := filepath.Join(dir, "clone")
	for _, s := range steps {
		if out, err := exec.CommandContext(t.Context(), "bash", "-n", "-c", s.command).CombinedOutput(); err != nil {
			t.Errorf("%s:%d: %s: %v\n%s", b.page, s.line, s.command, err, out)
		}
		words := strings.Fields(strings.ReplaceAll(s.command, "\\\n", " "))
		if i := slices.Index(words, "patchbay"); i >= 0 && i+1 < len(words) && regexp.MustCompile(`^[a-z-]+$`).MatchString(words[i+1]) {
			command, _, _ := strings.Cut(strings.Join(words[i:], " "), " #")
			command = regexp.MustCompile(` -- .*| (\||\d?>|&).*`).ReplaceAllString(command, "")
			help := exec.CommandContext(t.Context(), "bash", "-c", command+" --help")
			help.Env = environment
			if out, err := help.CombinedOutput(); err != nil {
				t.Errorf("%s:%d: %s: %v\n%s", b.page, s.line, command, err, out)
			}
		}
		for _, word := range words {
			word = strings.Trim(word, `'"`)
			if regexp.MustCompile(`^(\./)?(deploy|examples|bench|packaging|cmd)/`).MatchString(word) {
				if _, err := os.Stat(filepath.Join(clone, word)); err != nil {
					t.Errorf("%s:%d: %s is not in the repository", b.page, s.line, word)
				}
			}
		}
	}
}

// elsewhere is what is wrong with a configuration on this machine, or because the page shows a part of it.
var elsewhere = regexp.MustCompile(`on this machine|the node belongs to no fleet`)

// checkConfiguration checks a configuration, or a part of one.
func (b block) checkConfiguration(t *testing.T) {
	t.Helper()
	content := b.content()
	if !strings.Contains(content, "apiVersion:") {
		content = "apiVersion: patchbay.dev/v1alpha1\nkind: Config\n" + content
	}
	path := filepath.Join(emptyDir(t), "patchbay.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	check := exec.CommandContext(t.Context(), "bash", "-c", "patchbay config check "+path)
	check.Env = environment
	out, err := check.CombinedOutput()
	if err == nil {
		return
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, path) && !elsewhere.MatchString(line) {
			t.Errorf("%s:%d: %s", b.page, b.line, line)
		}
	}
}

// compile compiles a part of a program within what stands around it, which is in testdata: BLOCK is the block there.
func (b block) compile(t *testing.T, number int) {
	t.Helper()
	name := strings.TrimSuffix(filepath.Base(b.page), ".md") + "-" + string(rune('0'+number)) + ".txt"
	around, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Errorf("%s:%d: nothing says what stands around this part of a program: write that into testdata/%s, with BLOCK for it", b.page, b.line, name)
		return
	}
	text := regexp.MustCompile(`(?m)^\s*(// )?(…|\.{3})$`).ReplaceAllString(b.content(), "")
	text = strings.Replace(string(around), "BLOCK", text, 1)
	overlay := overlay(t, "../..", "internal/excerpt/excerpt.go", text)
	if _, err := output("../..", nil, "go", "build", "-overlay", overlay, "-o", os.DevNull, "./internal/excerpt"); err != nil {
		t.Errorf("%s:%d: the block does not compile: %v", b.page, b.line, err)
	}
}

// overlay returns what has the compiler, and nobody else, see a text as a file of a module.
func overlay(t *testing.T, module, file, text string) string {
	t.Helper()
	instead, err := filepath.Abs(filepath.Join(module, file))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	source, overlay := filepath.Join(dir, "source.go"), filepath.Join(dir, "overlay.json")
	replaced, err := json.Marshal(map[string]any{"Replace": map[string]string{instead: source}})
	if err := errors.Join(err, os.WriteFile(source, []byte(text), 0o600), os.WriteFile(overlay, replaced, 0o600)); err != nil {
		t.Fatal(err)
	}
	return overlay
}
