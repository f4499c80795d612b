package exe

import (
	"bytes"
	"fmt"
	"path"
)

// maxFirstLine is how much of the first line of a script counts, as in the kernel (BINPRM_BUF_SIZE).
const maxFirstLine = 256

// Script is what the first line of a script asks for.
type Script struct {
	// Interpreter is the absolute path of the program that runs it.
	Interpreter string
	// argument is what follows on the line; empty for nothing. As in the kernel it is one argument, whatever is in it.
	argument string
}

// parseScript reads the first line of a program; nil if it is no script.
func parseScript(program []byte) (*Script, error) {
	line, isScript := bytes.CutPrefix(program[:min(len(program), maxFirstLine)], []byte("#!"))
	if !isScript {
		return nil, nil //nolint:nilnil // no script is no error
	}
	line, _, ended := bytes.Cut(line, []byte("\n"))
	if !ended && len(program) >= maxFirstLine {
		return nil, fmt.Errorf("%w: the first line of the script has more than %d bytes", ErrUnfit, maxFirstLine)
	}
	line = bytes.Trim(line, " \t")
	interpreter, argument := line, []byte(nil)
	if i := bytes.IndexAny(line, " \t"); i >= 0 {
		interpreter, argument = line[:i], bytes.TrimLeft(line[i:], " \t")
	}
	if !path.IsAbs(string(interpreter)) || bytes.IndexByte(line, 0) >= 0 {
		return nil, fmt.Errorf("%w: the first line of the script names no interpreter by an absolute path: %q", ErrUnfit, line)
	}
	return &Script{Interpreter: string(interpreter), argument: string(argument)}, nil
}

// CommandLine returns the interpreter's arguments: its own name, what the line has, the script, and the script's own.
func (s *Script) CommandLine(script string, args []string) []string {
	line := []string{s.Interpreter}
	if s.argument != "" {
		line = append(line, s.argument)
	}
	return append(append(line, script), args...)
}
