package cipd

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	cipdv1 "github.com/patchbay-dev/patchbay/api/patchbay/cipd/v1"
)

const sha1Size = 20

// sizes are the lengths of the digests, by algorithm.
var sizes = map[cipdv1.HashAlgo]int{
	cipdv1.HashAlgo_HASH_ALGO_SHA1:   sha1Size,
	cipdv1.HashAlgo_HASH_ALGO_SHA256: sha256.Size,
}

// encoding is that of instance IDs. It is strict, so that each digest has one ID.
var encoding = base64.RawURLEncoding.Strict()

// ParseInstanceID returns the reference of an instance ID: the unpadded URL-safe base64 of the digest and a byte with the number of its
// algorithm, or 40 hexadecimal digits, which are an old ID with SHA-1.
func ParseInstanceID(id string) (*cipdv1.ObjectRef, error) {
	if len(id) == hex.EncodedLen(sha1Size) {
		ref := &cipdv1.ObjectRef{HashAlgo: cipdv1.HashAlgo_HASH_ALGO_SHA1, HexDigest: id}
		if _, err := digestOf(ref); err != nil {
			return nil, invalid(id, err)
		}
		return ref, nil
	}
	if strings.ContainsAny(id, "\r\n") {
		return nil, invalid(id, errors.New("it has a line break")) // which the decoder skips
	}
	raw, err := encoding.DecodeString(id)
	if err != nil {
		return nil, invalid(id, err)
	}
	if len(raw) == 0 {
		return nil, invalid(id, errors.New("it is empty"))
	}
	digest, algo := raw[:len(raw)-1], cipdv1.HashAlgo(raw[len(raw)-1])
	if size, known := sizes[algo]; !known || size != len(digest) {
		return nil, invalid(id, fmt.Errorf("it has a digest of %d bytes by algorithm %d", len(digest), algo))
	}
	return &cipdv1.ObjectRef{HashAlgo: algo, HexDigest: hex.EncodeToString(digest)}, nil
}

// InstanceID is the reverse of [ParseInstanceID]. For SHA-1 it returns the old form, in which such instances are known.
func InstanceID(ref *cipdv1.ObjectRef) (string, error) {
	digest, err := digestOf(ref)
	if err != nil {
		return "", err
	}
	if ref.GetHashAlgo() == cipdv1.HashAlgo_HASH_ALGO_SHA1 {
		return ref.GetHexDigest(), nil
	}
	return encoding.EncodeToString(append(digest, byte(ref.GetHashAlgo()))), nil
}

// digestOf returns the digest of a reference that is well formed.
func digestOf(ref *cipdv1.ObjectRef) ([]byte, error) {
	size, known := sizes[ref.GetHashAlgo()]
	if !known {
		return nil, fmt.Errorf("a digest by algorithm %d, which is not known", ref.GetHashAlgo())
	}
	digest, err := hex.DecodeString(ref.GetHexDigest())
	if err != nil || len(digest) != size || hex.EncodeToString(digest) != ref.GetHexDigest() {
		return nil, fmt.Errorf("%.100q is no digest of %d bytes in lower-case hexadecimal digits", ref.GetHexDigest(), size)
	}
	return digest, nil
}

func invalid(id string, err error) error {
	return fmt.Errorf("%.100q is no instance ID: %w", id, err)
}
