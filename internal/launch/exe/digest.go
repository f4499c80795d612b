package exe

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
)

// MaxSize is the size in bytes of the largest program that is copied. A copy is memory of the host, for as long as it is kept or runs.
const MaxSize = 1 << 30

var (
	// ErrDigest is wrapped by errors of [Cache.Open]: the program is not the one that is expected.
	ErrDigest = errors.New("the program has another digest")
	// ErrUnfit is wrapped by errors about files that are refused: the file is not one that can be copied and run.
	ErrUnfit = errors.New("the program cannot be run from a checked copy")
)

// Digest is the SHA-256 of a program.
type Digest [32]byte

// ParseDigest reads 64 hexadecimal digits.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(d) {
		return d, fmt.Errorf("%q is no SHA-256 digest: it must have 64 hexadecimal digits", s)
	}
	copy(d[:], b)
	return d, nil
}

func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// InstanceID returns the digest as an instance ID of CIPD: the unpadded URL-safe base64 of its bytes and the number of the algorithm.
func (d Digest) InstanceID() string {
	const sha256 = 2
	return base64.RawURLEncoding.EncodeToString(append(d[:], sha256))
}
