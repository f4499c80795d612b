package sealedexec

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/patchbay-dev/patchbay/internal/regular"
)

// errForeign is wrapped by errors about programs in a format that the kernel does not execute without a registered handler.
var errForeign = errors.New("this system cannot execute it")

// Check returns the reason why the system cannot execute the program at path, which exists; nil if no reason is found.
func Check(path string) error {
	err := Explain(path)
	if errors.Is(err, errForeign) && hasHandlers() {
		return nil
	}
	return err
}

// Explain is like [Check] for a program that the system has refused to execute.
func Explain(path string) error {
	program, err := regular.Open(path)
	if err != nil {
		return nil // a program need not be readable to be executed, and a pipe or a device is not read
	}
	defer program.Close()
	begin := make([]byte, 4<<10)        // with the headers of an ELF file
	n, _ := io.ReadFull(program, begin) // what is missing is not a program
	begin = begin[:n]
	switch script, err := ParseScript(begin); {
	case err != nil:
		return nil // the kernel may accept it
	case script != nil:
		return explainScript(path, script)
	case bytes.HasPrefix(begin, []byte(elf.ELFMAG)):
		return explainELF(path, begin, program)
	}
	return fmt.Errorf("%w: %s is neither a program of this system nor a script, which begins with \"#!\"", errForeign, path)
}

func explainScript(path string, script *Script) error {
	_, err := os.Stat(script.Interpreter)
	switch {
	case err != nil && strings.HasSuffix(script.Interpreter, "\r"):
		return fmt.Errorf("the first line of the script %s ends with a carriage return: save it with the line ends of Unix", path)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("the interpreter %s, which the first line of the script %s names, is missing: install it or correct the line",
			script.Interpreter, path)
	case err != nil:
		return fmt.Errorf("the interpreter of the script %s: %w", path, err)
	}
	return nil
}

func explainELF(path string, begin []byte, program io.ReaderAt) error {
	hideSections(begin)
	file, err := elf.NewFile(bytes.NewReader(begin))
	if err != nil {
		return nil //nolint:nilerr // the kernel reads less of it
	}
	machine := strings.ToLower(strings.TrimPrefix(file.Machine.String(), "EM_"))
	native, known := natives[runtime.GOARCH]
	if known && !slices.Contains(native, file.Machine) {
		return fmt.Errorf("%w: %s is built for %s, and this machine is %s", errForeign, path, cmp.Or(machineNames[file.Machine], machine),
			runtime.GOARCH)
	}
	for _, segment := range file.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		const longest = 4096
		name, err := io.ReadAll(io.NewSectionReader(program, int64(segment.Off), int64(min(segment.Filesz, longest))))
		loader := string(bytes.TrimRight(name, "\x00"))
		if _, missing := os.Stat(loader); err == nil && errors.Is(missing, os.ErrNotExist) {
			return fmt.Errorf("the dynamic loader %s, with which %s was linked, is missing: install the C library that it needs, or link it "+
				"statically", loader, path)
		}
	}
	return nil
}

// hideSections removes the sections, of which elf.NewFile would read each, from the headers of an ELF file.
func hideSections(begin []byte) {
	offset, numbers := begin[:0], begin[:0] // e_shoff; e_shnum and e_shstrndx
	switch {
	case len(begin) >= 64 && begin[elf.EI_CLASS] == byte(elf.ELFCLASS64):
		offset, numbers = begin[40:48], begin[60:64]
	case len(begin) >= 52:
		offset, numbers = begin[32:36], begin[48:52]
	}
	clear(offset)
	clear(numbers)
}

// natives lists the machines whose programs the kernel may execute, by GOARCH.
var natives = map[string][]elf.Machine{
	"386": {elf.EM_386}, "amd64": {elf.EM_X86_64, elf.EM_386}, "arm": {elf.EM_ARM}, "arm64": {elf.EM_AARCH64, elf.EM_ARM},
	"ppc64le": {elf.EM_PPC64}, "riscv64": {elf.EM_RISCV}, "s390x": {elf.EM_S390}, "loong64": {elf.EM_LOONGARCH},
}

// machineNames has the Go names of machines whose ELF names differ.
var machineNames = map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_RISCV: "riscv64", elf.EM_S390: "s390x"}

// hasHandlers reports whether programs are registered that execute programs of other machines (binfmt_misc).
func hasHandlers() bool {
	entries, _ := os.ReadDir("/proc/sys/fs/binfmt_misc") // there are none if it is not mounted
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() != "register" && e.Name() != "status" })
}
