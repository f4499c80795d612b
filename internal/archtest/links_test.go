package archtest

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	fences   = regexp.MustCompile("(?ms)^ *```.*?\n *```")
	inCode   = regexp.MustCompile("`[^`\n]*`")
	links    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	headings = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	mentions = regexp.MustCompile(`(?:^|[^\w./-])docs/([\w./-]*\w)`)
)

// texts are the files of the repository that end so, by path relative to its root, but for what is generated or only data.
func texts(t *testing.T, ends ...string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		switch base := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir():
			if file != root && (strings.HasPrefix(base, ".") && base != ".github" || slices.Contains(
				[]string{"testdata", "node_modules", "results", "dist", "templates"}, base)) {
				return filepath.SkipDir
			}
			return nil
		case !slices.Contains(ends, filepath.Ext(file)):
			return nil
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, file)
		found[filepath.ToSlash(relative)] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// anchors are the fragments by which the headings of a page can be reached on a forge.
func anchors(page string) (all []string) {
	seen := map[string]bool{}
	for _, heading := range headings.FindAllStringSubmatch(fences.ReplaceAllString(page, ""), -1) {
		text := strings.ToLower(linkText.ReplaceAllString(heading[1], "$1"))
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', r >= 'a' && r <= 'z', r >= '0' && r <= '9', r > 127 && !strings.ContainsRune("…–—“”’", r):
				return r
			}
			return -1
		}, text)
		for n, base := 1, anchor; seen[anchor]; n++ {
			anchor = base + "-" + string(rune('0'+n))
		}
		seen[anchor] = true
		all = append(all, anchor)
	}
	return all
}

// brokenLinks returns the links of a page that lead to no file, or to no heading of one. exists says whether a path is there.
func brokenLinks(name string, pages map[string]string, exists func(path string) bool) (broken []string) {
	text := inCode.ReplaceAllString(fences.ReplaceAllString(pages[name], ""), "`code`")
	for _, match := range links.FindAllStringSubmatch(text, -1) {
		target, fragment, hasFragment := strings.Cut(match[1], "#")
		if strings.Contains(target, ":") {
			continue // another site
		}
		leads := name
		if target != "" {
			leads = path.Join(path.Dir(name), target)
		}
		if !exists(leads) || hasFragment && !slices.Contains(anchors(pages[leads]), fragment) {
			broken = append(broken, match[1])
		}
	}
	return broken
}

func exists(name string) bool {
	_, err := os.Stat(filepath.Join(root, name))
	return err == nil
}

// TestLinksLead follows every link between the files of the repository, to the heading if it names one.
func TestLinksLead(t *testing.T) {
	pages := texts(t, ".md")
	if len(pages) < 40 {
		t.Fatalf("%d pages were found: the test is broken", len(pages))
	}
	for name := range pages {
		for _, link := range brokenLinks(name, pages, exists) {
			t.Errorf("%s: the link to %s leads nowhere", name, link)
		}
	}
}

// TestMentionedPagesExist looks for the pages that comments, help and error texts name.
func TestMentionedPagesExist(t *testing.T) {
	checked := 0
	for name, text := range texts(t, ".go", ".proto", ".yaml", ".yml", ".js", ".tmpl", ".md") {
		if name == "CHANGELOG.md" || strings.HasPrefix(name, "internal/archtest/") {
			continue // tells of what was there; names what is not
		}
		for _, match := range mentions.FindAllStringSubmatch(text, -1) {
			checked++
			// A decision is named by its number alone.
			found, err := filepath.Glob(filepath.Join(root, "docs", match[1]+"*"))
			if err != nil || len(found) == 0 {
				t.Errorf("%s names docs/%s, which does not exist", name, match[1])
			}
		}
	}
	if checked < 40 {
		t.Errorf("%d mentions were found: the test is broken", checked)
	}
}

// TestEveryPageIsInTheIndex: whoever comes to docs/README.md finds each page.
func TestEveryPageIsInTheIndex(t *testing.T) {
	pages := texts(t, ".md")
	linked := map[string]bool{}
	for _, match := range links.FindAllStringSubmatch(pages["docs/README.md"], -1) {
		target, _, _ := strings.Cut(match[1], "#")
		linked[path.Join("docs", target)] = true
	}
	for name := range pages {
		inDocs := strings.HasPrefix(name, "docs/") && name != "docs/README.md" && !strings.HasPrefix(name, "docs/adr/")
		if inDocs && !linked[name] {
			t.Errorf("docs/README.md does not lead to %s", name)
		}
		if inDocs && !regexp.MustCompile(`^docs/(tutorials|how-to|reference|explanation)/`).MatchString(name) {
			t.Errorf("%s is in none of tutorials, how-to, reference and explanation", name)
		}
	}
}

func TestBrokenLinks(t *testing.T) {
	pages := map[string]string{
		"docs/a.md": "# A page: of `mine`\n\n## Twice\n\n## Twice\n[x](b.md) [x](c.md) [x](#twice-1) [x](#twice-2) [x](#a-page-of-mine)\n" +
			"[x](https://example.com/no) `[x](no.md)` [x](../README.md#top) [x](../README.md#no)\n\n```md\n# No\n[x](no.md)\n```\n[x](#no)\n",
		"README.md": "# Top\n",
	}
	got := brokenLinks("docs/a.md", pages, func(path string) bool { return pages[path] != "" || path == "docs/b.md" })
	if diff := cmp.Diff([]string{"c.md", "#twice-2", "../README.md#no", "#no"}, got); diff != "" {
		t.Errorf("broken links (-want +got):\n%s", diff)
	}
}

// TestOneCanJoin looks for what somebody needs who comes from outside, and for the one check that every change passes.
func TestOneCanJoin(t *testing.T) {
	for _, name := range []string{
		"SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "packaging/release", ".github/pull_request_template.md",
		".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/feature.yml", "docs/explanation/roadmap.md",
	} {
		if !exists(name) {
			t.Errorf("%s is missing", name)
		}
	}
	if !regexp.MustCompile(`(?m)^ +run: .*\.ci/run$`).MatchString(read(t, ".github/workflows/ci.yml")) {
		t.Error(".github/workflows/ci.yml does not run .ci/run")
	}
}

// TestEveryModuleIsTested checks that .ci/test runs the tests of every module that has any.
func TestEveryModuleIsTested(t *testing.T) {
	script, tested := read(t, ".ci/test"), 0
	modules, err := filepath.Glob(filepath.Join(root, "*", "go.mod"))
	nested, nestedErr := filepath.Glob(filepath.Join(root, "*", "*", "go.mod"))
	if err := errors.Join(err, nestedErr); err != nil {
		t.Fatal(err)
	}
	for _, module := range append(modules, nested...) {
		dir := filepath.Dir(module)
		tests, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		below, belowErr := filepath.Glob(filepath.Join(dir, "*", "*_test.go"))
		if err := errors.Join(err, belowErr); err != nil {
			t.Fatal(err)
		}
		tests = append(tests, below...)
		name, err := filepath.Rel(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(tests) > 0 {
			tested++
		}
		if len(tests) > 0 && !regexp.MustCompile(`\bcd `+regexp.QuoteMeta(name)+`(\s|$)`).MatchString(script) {
			t.Errorf(".ci/test does not run the tests of the module %s", name)
		}
	}
	if tested < 5 {
		t.Fatalf("%d modules with tests were found: the test is broken", tested)
	}
}
