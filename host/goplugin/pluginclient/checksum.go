package pluginclient

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	library "github.com/hashicorp/go-plugin"
)

// checkedDigest checks a program by what the configuration says of it and returns its SHA-256, by which the launcher runs exactly what was
// checked: also if the file is another one then.
func checkedDigest(config *library.SecureConfig, path string) (string, error) {
	if config.Hash == nil || len(config.Checksum) == 0 {
		return "", fmt.Errorf("cannot check %s: SecureConfig needs a Checksum and a Hash", path)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	config.Hash.Reset()
	_, _ = config.Hash.Write(program) // a hash does not fail
	if !bytes.Equal(config.Hash.Sum(nil), config.Checksum) {
		return "", library.ErrChecksumsDoNotMatch
	}
	digest := sha256.Sum256(program)
	return hex.EncodeToString(digest[:]), nil
}
