// Package fuzzcorpus adds the inputs that earlier runs of the fuzzer found to the seeds of a fuzz target, so every run of the tests tries
// them again. Only tests import it. The inputs of a target are in one archive; "make fuzz" adds new ones to it.
package fuzzcorpus

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// Add adds the inputs of the archive testdata/NAME.txtar to the target of that name. Each file of the archive is one input, in the format
// of the files in testdata/fuzz.
func Add(f *testing.F) {
	f.Helper()
	archive, err := txtar.ParseFile(filepath.Join("testdata", f.Name()+".txtar"))
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range archive.Files {
		_, lines, _ := strings.Cut(string(file.Data), "\n") // the first line is the version of the format
		var args []any
		for line := range strings.Lines(lines) {
			arg, err := parse(strings.TrimSuffix(line, "\n"))
			if err != nil {
				f.Fatalf("%s: %q: %v", file.Name, line, err)
			}
			args = append(args, arg)
		}
		f.Add(args...)
	}
}

// parse returns the value of an argument, such as []byte("\x00") or int(7).
func parse(arg string) (any, error) {
	kind, literal, _ := strings.Cut(strings.TrimSuffix(arg, ")"), "(")
	switch kind {
	case "string":
		return strconv.Unquote(literal)
	case "[]byte":
		text, err := strconv.Unquote(literal)
		return []byte(text), err
	case "rune": // an int32 that is a character
		text, err := strconv.Unquote(literal)
		return []rune(text)[0], err
	case "int":
		return strconv.Atoi(literal)
	case "int32":
		n, err := strconv.ParseInt(literal, 10, 32)
		return int32(n), err
	case "uint32":
		n, err := strconv.ParseUint(literal, 10, 32)
		return uint32(n), err
	case "uint64":
		return strconv.ParseUint(literal, 10, 64)
	}
	return nil, fmt.Errorf("arguments of this type are not supported")
}
