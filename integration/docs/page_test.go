package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// block is a block of code of a page. Its first line may be a comment that is only a file name: the block is that file then. After the
// language, the line that opens it may have these words:
//
//	in=clone     the commands are for a clone of the repository
//	needs=WHAT   it cannot run everywhere: needs says of which things
type block struct {
	page     string
	line     int // of what opens it
	language string
	words    map[string]string
	text     []string
}

// needs are the things that blocks may need, and what that means.
var needs = map[string]string{
	"package-manager":  "a system whose package manager installs a package that was built before",
	"container-engine": "an engine that builds or runs containers",
	"cluster":          "a Kubernetes cluster",
	"release":          "files of a version that was published",
	"systemd":          "a machine that runs systemd, and root on it",
	"machine":          "a machine of its own: its system paths, users or devices",
	"etcd":             "etcd with its users and certificates",
	"node":             "Node.js with its packages",
	"minutes":          "minutes: .ci/run runs the commands",
}

// pages are the pages for users.
func pages(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*/README.md"} {
		found, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	if len(all) < 45 {
		t.Fatalf("%d pages were found: the test is broken", len(all))
	}
	return all
}

// blocks returns the blocks of code of a page.
func blocks(t *testing.T, page string) (all []block) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for i, line := range strings.Split(string(text), "\n") {
		switch info, fence := strings.CutPrefix(strings.TrimSpace(line), "```"); {
		case fence && !inside:
			all = append(all, newBlock(t, page, i+1, info))
			inside = true
		case fence:
			inside = false
		case inside:
			last := &all[len(all)-1]
			last.text = append(last.text, line)
		}
	}
	if inside {
		t.Fatalf("%s has a block without an end", page)
	}
	return all
}

func newBlock(t *testing.T, page string, line int, info string) block {
	t.Helper()
	b := block{page: page, line: line, words: map[string]string{}}
	for i, word := range strings.Fields(info) {
		if i == 0 {
			b.language = word
			continue
		}
		key, value, _ := strings.Cut(word, "=")
		b.words[key] = value
		if key != "needs" && word != "in=clone" || key == "needs" && needs[value] == "" {
			t.Errorf("%s:%d: nobody knows what %q means", page, line, word)
		}
	}
	return b
}

var fileName = regexp.MustCompile(`^(?:#|//) ([A-Za-z0-9_.-]+\.[a-z]+)$`)

// file is the name of the file that the block is; empty if it is none.
func (b block) file() string {
	if len(b.text) > 0 {
		if match := fileName.FindStringSubmatch(b.text[0]); match != nil {
			return match[1]
		}
	}
	return ""
}

func (b block) content() string { return strings.Join(b.text, "\n") + "\n" }

// step is a command of a block, and what the block shows that it prints.
type step struct {
	line    int
	command string
	output  []string
}

// steps returns the commands of a block, and whether it shows what any of them prints. In a block of "sh" each line is a command.
func (b block) steps(t *testing.T) (all []step, shown bool) {
	t.Helper()
	goesOn := false
	for i, line := range b.text {
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			command, ok = strings.CutPrefix(line, "# ")
		}
		if b.language == "sh" {
			command, ok = line, line != ""
		}
		switch {
		case goesOn:
			all[len(all)-1].command += "\n" + line
		case ok:
			all = append(all, step{line: b.line + 1 + i, command: command})
		case len(all) == 0:
			t.Fatalf("%s:%d: output before the first command", b.page, b.line+1+i)
		default:
			all[len(all)-1].output = append(all[len(all)-1].output, line)
			shown = true
		}
		goesOn = (ok || goesOn) && strings.HasSuffix(line, `\`)
	}
	return all, shown
}

var (
	instances = regexp.MustCompile(`\b[a-z2-7]{16}\b`)
	numbers   = regexp.MustCompile(`\d+`)
)

// alike returns a text with the same in the place of all identifiers and of all numbers: those on the page are examples.
func alike(text string) string {
	return numbers.ReplaceAllString(instances.ReplaceAllString(text, "0"), "0")
}

// matches says whether a command printed what the page shows. A "…" stands for anything in its line; alone in a line, for any lines.
// Spaces between words are those of a table, whose columns are as wide as they have to be.
func (s step) matches(printed string) bool {
	var pattern strings.Builder
	pattern.WriteString(`\A`)
	for _, line := range s.output {
		if line == "…" {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		quoted := strings.ReplaceAll(regexp.QuoteMeta(strings.Join(strings.Fields(alike(line)), " ")), "…", ".*")
		pattern.WriteString(` *` + strings.ReplaceAll(quoted, " ", " *") + ` *\n`)
	}
	pattern.WriteString(`\z`)
	return regexp.MustCompile(pattern.String()).MatchString(alike(printed))
}
