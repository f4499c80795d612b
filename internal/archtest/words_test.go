package archtest

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// unread are the packages and pages that have not been checked for the words that CONTRIBUTING.md avoids. Nothing is added here.
var unread = regexp.MustCompile(`^(integration/|bench/|docs/adr/001[23]|internal/reconciler/\w*sim\w*_test)`)

// avoided returns one pattern for the words that CONTRIBUTING.md says not to write.
func avoided(t *testing.T) *regexp.Regexp {
	t.Helper()
	var all []string
	_, section, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "\n## Words\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, row := range regexp.MustCompile(`(?m)^\| .* \| (.*) \|$`).FindAllStringSubmatch(section, -1) {
		for word := range strings.SplitSeq(row[1], ", ") {
			if word != "not" {
				// A sentence may be broken anywhere, also in a comment.
				all = append(all, strings.ReplaceAll(regexp.QuoteMeta(word), " ", `(?:\s|//|#)+`))
			}
		}
	}
	if len(all) < 15 {
		t.Fatalf("CONTRIBUTING.md has %d words that are not written: the test is broken", len(all))
	}
	return regexp.MustCompile(`(?i)\b(?:` + strings.Join(all, "|") + `)\b`)
}

// TestWords looks for the words that are not written, in everything that a user or a developer reads.
func TestWords(t *testing.T) {
	words := avoided(t)
	checked := 0
	for name, text := range texts(t, ".md", ".go", ".proto", ".html", ".js", ".yaml") {
		told := slices.Contains([]string{"CONTRIBUTING.md", "CHANGELOG.md", "internal/archtest/words_test.go"}, name)
		if told || unread.MatchString(name) || strings.HasSuffix(name, ".pb.go") {
			continue
		}
		checked++
		for _, at := range words.FindAllStringIndex(text, -1) {
			line := 1 + strings.Count(text[:at[0]], "\n")
			t.Errorf("%s:%d: %q: CONTRIBUTING.md (Words) says what to write instead", name, line, text[at[0]:at[1]])
		}
	}
	if checked < 300 {
		t.Errorf("%d files were read: the test is broken", checked)
	}
}
