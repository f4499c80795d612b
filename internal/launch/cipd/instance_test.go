package cipd

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"

	cipdv1 "github.com/patchbay-dev/patchbay/api/patchbay/cipd/v1"
	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
)

const oldID = "da39a3ee5e6b4b0d3255bfef95601890afd80709"

func TestInstanceIDs(t *testing.T) {
	empty := sha256.Sum256(nil)
	old, err := hex.DecodeString(oldID)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]*cipdv1.ObjectRef{
		fileID(""): {HashAlgo: cipdv1.HashAlgo_HASH_ALGO_SHA256, HexDigest: hex.EncodeToString(empty[:])},
		oldID:      {HashAlgo: cipdv1.HashAlgo_HASH_ALGO_SHA1, HexDigest: oldID},
		base64.RawURLEncoding.EncodeToString(append(old, 1)): {HashAlgo: cipdv1.HashAlgo_HASH_ALGO_SHA1, HexDigest: oldID},
	} {
		ref, err := ParseInstanceID(id)
		if err != nil || ref.GetHashAlgo() != want.GetHashAlgo() || ref.GetHexDigest() != want.GetHexDigest() {
			t.Errorf("ParseInstanceID(%s) = %v, %v; want %v", id, ref, err, want)
		}
	}
}

func TestInstanceIDsThatAreNone(t *testing.T) {
	digest := sha256.Sum256(nil)
	good := fileID("")
	for name, id := range map[string]string{
		"empty":                 "",
		"no base64":             "!",
		"padded":                good + "=",
		"line break":            good[:10] + "\n" + good[10:],
		"unknown algorithm":     base64.RawURLEncoding.EncodeToString(append(digest[:], 3)),
		"no algorithm":          base64.RawURLEncoding.EncodeToString(append(digest[:], 0)),
		"too short":             base64.RawURLEncoding.EncodeToString(append(digest[1:], 2)),
		"SHA-1 of other length": base64.RawURLEncoding.EncodeToString(append(digest[:], 1)),
		"upper case":            strings.ToUpper(oldID),
		"40 characters":         strings.Repeat("z", 40),
	} {
		if ref, err := ParseInstanceID(id); err == nil {
			t.Errorf("%s: %q is taken for %v", name, id, ref)
		}
	}
}

func TestReferencesThatAreNone(t *testing.T) {
	for name, ref := range map[string]*cipdv1.ObjectRef{
		"none":              nil,
		"no algorithm":      {HexDigest: oldID},
		"unknown algorithm": {HashAlgo: 7, HexDigest: oldID},
		"no digest":         {HashAlgo: cipdv1.HashAlgo_HASH_ALGO_SHA1},
		"other length":      {HashAlgo: cipdv1.HashAlgo_HASH_ALGO_SHA256, HexDigest: oldID},
		"upper case":        {HashAlgo: cipdv1.HashAlgo_HASH_ALGO_SHA1, HexDigest: strings.ToUpper(oldID)},
		"odd":               {HashAlgo: cipdv1.HashAlgo_HASH_ALGO_SHA1, HexDigest: oldID[1:]},
	} {
		if id, err := instanceID(ref); err == nil {
			t.Errorf("%s: it is taken for %s", name, id)
		}
	}
}

func FuzzParseInstanceID(f *testing.F) {
	f.Add(fileID(""))
	f.Add(oldID)
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, id string) {
		ref, err := ParseInstanceID(id)
		if err != nil {
			return
		}
		back, err := instanceID(ref)
		if err != nil {
			t.Fatalf("%q gave %v, which is none: %v", id, ref, err)
		}
		// One with SHA-1 may be in either form.
		if back != id && (ref.GetHashAlgo() != cipdv1.HashAlgo_HASH_ALGO_SHA1 || back != ref.GetHexDigest()) {
			t.Errorf("%q became %q", id, back)
		}
	})
}

func FuzzInstanceID(f *testing.F) {
	f.Add(int32(1), oldID)
	f.Add(int32(2), hex.EncodeToString(make([]byte, sha256.Size)))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, algo int32, digest string) {
		ref := &cipdv1.ObjectRef{HashAlgo: cipdv1.HashAlgo(algo), HexDigest: digest}
		id, err := instanceID(ref)
		if err != nil {
			return
		}
		back, err := ParseInstanceID(id)
		if err != nil || back.GetHashAlgo() != ref.GetHashAlgo() || back.GetHexDigest() != digest {
			t.Errorf("%v became %q, and that %v: %v", ref, id, back, err)
		}
	})
}
