package cli

import (
	"bytes"
	"encoding/json"
	"io"
)

// maxIndented bounds how deep an answer may be nested to be indented; deeper ones would grow by more than they are worth.
const maxIndented = 64

// print writes one answer, which is compact JSON.
func (c *callCommand) print(w io.Writer, answer []byte) error {
	switch {
	case c.output.value == "yaml":
		if err := write(w, []byte("---\n")); err != nil {
			return err
		}
		return writeYAML(w, json.RawMessage(answer))
	case isTerminal(w) && depth(answer) <= maxIndented:
		return writeJSON(w, json.RawMessage(answer))
	}
	return writeJSONLine(w, json.RawMessage(answer))
}

// depth returns how deep a JSON text is nested.
func depth(text []byte) int {
	now, most := 0, 0
	inString, escaped := false, false
	for _, b := range text {
		switch {
		case escaped:
			escaped = false
		case inString && b == '\\':
			escaped = true
		case b == '"':
			inString = !inString
		case inString:
		case b == '{' || b == '[':
			now++
			most = max(most, now)
		case b == '}' || b == ']':
			now--
		}
	}
	return most
}

// writeLines writes lines that a plugin may have had a part in.
func writeLines(w io.Writer, lines []string) error {
	var text bytes.Buffer
	for _, line := range lines {
		text.WriteString(escape(line))
		text.WriteByte('\n')
	}
	return write(w, text.Bytes())
}
