package untrusted

import (
	"strings"
	"testing"
)

func TestChecks(t *testing.T) {
	for text, want := range map[string]string{
		"a b": "", "ü": "", "": "what is empty; it is required", strings.Repeat("x", 9): "what has 9 bytes; 8 are allowed",
		"\xff": `what "\xff" has characters that cannot be printed`, "\x1b[2J": `what "\x1b[2J" has characters that cannot be printed`,
		"a\u202eb": `what "a\u202eb" has characters that cannot be printed`, "a\u00a0b": `what "a\u00a0b" has characters that cannot be printed`,
	} {
		got := ""
		if err := Required("what", text, 8); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if err := Name("what", "a b", 8); err == nil || err.Error() != `what "a b" has spaces` {
		t.Errorf("a name with a space: %v", err)
	}
	if err := Check("what", "", 8); err != nil {
		t.Errorf("an empty text: %v", err)
	}
}

func TestListsAreBounded(t *testing.T) {
	if got, want := QuoteAll([]string{"a", "b"}), `"a", "b"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := QuoteAll(make([]string, 20)); !strings.HasSuffix(got, " and 4 more") || strings.Count(got, `""`) != 16 {
		t.Errorf("of 20: %s", got)
	}
}

func TestTextsAreBounded(t *testing.T) {
	for _, text := range []string{"", "short", strings.Repeat("x", 256), strings.Repeat("x", 255) + "é", strings.Repeat("\x1b", 1<<20)} {
		clipped, quoted := Clip(text), Quote(text)
		if len(clipped) > 256+len("…") || len(quoted) > 4*256+len(`""…`) || strings.ContainsRune(quoted, '\x1b') {
			t.Errorf("of %d bytes: %q, %s", len(text), clipped, quoted)
		}
		if cut := len(text) > 256; cut != strings.HasSuffix(clipped, "…") || cut != strings.HasSuffix(quoted, `"…`) || !cut && clipped != text {
			t.Errorf("of %d bytes: %q, %s", len(text), clipped, quoted)
		}
	}
}
