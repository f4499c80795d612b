package pluginclient

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	library "github.com/hashicorp/go-plugin"

	"github.com/patchbay-dev/patchbay/internal/launch/exe"
)

// checked checks a program by what the configuration says of it. It returns its SHA-256 and the interpreter if it is a script, by which the
// launcher runs exactly what was checked: also if the file is another one then.
func checked(config *library.SecureConfig, path string) (digest, interpreter string, err error) {
	switch {
	case len(config.Checksum) == 0:
		err = library.ErrSecureConfigNoChecksum
	case config.Hash == nil:
		err = library.ErrSecureConfigNoHash
	}
	if err != nil {
		return "", "", fmt.Errorf("cannot check %s: %w; set it in SecureConfig", path, err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	config.Hash.Reset()
	_, _ = config.Hash.Write(program) // a hash does not fail
	if !bytes.Equal(config.Hash.Sum(nil), config.Checksum) {
		return "", "", library.ErrChecksumsDoNotMatch
	}
	script, err := exe.ParseScript(program)
	if script != nil {
		interpreter = script.Interpreter
	}
	sum := sha256.Sum256(program)
	return hex.EncodeToString(sum[:]), interpreter, err
}
