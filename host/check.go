package host

import (
	"context"
	"fmt"
	"strconv"

	"github.com/patchbay-dev/patchbay/internal/launch/exe"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/plugin"
)

// ErrDigest is wrapped by the error of [Host.Launch] if the program does not have the digest that was expected.
var ErrDigest = exe.ErrDigest

// check copies the program and asks all that is to be asked about the copy. It returns nil if nothing is to be asked: then the program runs
// from its file. The caller releases the image.
func (h *Host) check(ctx context.Context, spec Spec, program string) (*exe.Image, error) {
	if spec.SHA256 == "" && spec.Admit == nil {
		return nil, nil //nolint:nilnil // documented
	}
	var want *exe.Digest
	if spec.SHA256 != "" {
		d, err := exe.ParseDigest(spec.SHA256)
		if err != nil {
			return nil, err
		}
		want = &d
	}
	image, err := h.programs.Open(program, want)
	if err != nil {
		return nil, err
	}
	err = checkInterpreter(image, spec.Interpreter)
	if err == nil && spec.Admit != nil {
		err = spec.Admit(ctx, pinOf(spec, image))
	}
	if err != nil {
		image.Release()
		return nil, err
	}
	return image, nil
}

func pinOf(spec Spec, image *exe.Image) plugin.Pin {
	return plugin.Pin{PackageName: spec.Name, InstanceID: image.Digest().InstanceID()}
}

// checkInterpreter refuses a script whose interpreter is not the one that is listed.
func checkInterpreter(image *exe.Image, listed string) error {
	script := image.Script()
	switch {
	case script == nil:
		return nil
	case listed == "":
		return fmt.Errorf("%s is a script, and no interpreter is listed for it: list %s as its interpreter, if that may run it",
			image.Path(), script.Interpreter)
	case script.Interpreter != listed:
		return fmt.Errorf("%s is a script for %s, and the interpreter that is listed for it is %s", image.Path(), script.Interpreter, listed)
	}
	return exe.TrustInterpreter(script.Interpreter)
}

// execute has the image executed in place of the file. The copy is the first descriptor after the ExtraFiles, and stays open in the plugin:
// an interpreter reads its script there.
func execute(s *process.Spec, image *exe.Image) {
	if image == nil {
		return
	}
	copied := "/proc/self/fd/" + strconv.Itoa(firstExtra+len(s.ExtraFiles))
	s.ExtraFiles = append(s.ExtraFiles[:len(s.ExtraFiles):len(s.ExtraFiles)], image.File())
	s.Path = copied
	if script := image.Script(); script != nil {
		s.Path, s.Args = script.Interpreter, script.CommandLine(copied, s.Args[1:])
	}
}

// firstExtra is the descriptor of the first of the ExtraFiles.
const firstExtra = 3

func release(image *exe.Image) {
	if image != nil {
		image.Release()
	}
}

// launchedMessage says what was launched.
func launchedMessage(program string, image *exe.Image) string {
	if image == nil {
		return "launched " + program
	}
	return fmt.Sprintf("launched %s, sha256 %s", program, image.Digest())
}
