package main

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/patchbay-dev/patchbay/plugin"
)

// maxList bounds a list in bytes.
const maxList = 16 << 20

// list is what may run: the SHA-256 digests of the programs by the names under which they may run.
type list map[string][][sha256.Size]byte

// loadList reads a signed list and checks its signature before anything else of it.
func loadList(file, publicKey string) (list, error) {
	key, err := parsePublicKey(publicKey)
	if err != nil {
		return nil, err
	}
	text, err := readBounded(file)
	if err != nil {
		return nil, err
	}
	body, err := verified(text, key)
	if err == nil {
		var l list
		if l, err = parseList(body); err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("cannot use the list %s: %w", file, err)
}

func readBounded(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxList+1))
	if err == nil && len(text) > maxList {
		err = fmt.Errorf("%s has more than %d bytes", file, maxList)
	}
	return text, err
}

// parseList reads lines of a name and a digest in hexadecimal. Empty lines and those that begin with # are skipped.
func parseList(text []byte) (list, error) {
	l := list{}
	scanner := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; scanner.Scan(); n++ {
		line := strings.TrimSpace(scanner.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 2 {
			return nil, fmt.Errorf("line %d has %d words, want a name and a digest", n, len(fields))
		}
		digest, err := hex.DecodeString(fields[1])
		if err != nil || len(digest) != sha256.Size {
			return nil, fmt.Errorf("line %d: %.80q is not a SHA-256 digest of 64 hexadecimal digits, as sha256sum prints it", n, fields[1])
		}
		l[fields[0]] = append(l[fields[0]], [sha256.Size]byte(digest))
	}
	return l, scanner.Err()
}

// check says why an instance of a package may not run; nil if it may.
func (l list) check(pin plugin.Pin) error {
	digests, ok := l[pin.PackageName]
	if !ok {
		return fmt.Errorf("%s is not in the signed list", pin.PackageName)
	}
	digest, err := digestOf(pin)
	if err != nil {
		return err
	}
	for _, d := range digests {
		if d == digest {
			return nil
		}
	}
	return fmt.Errorf("%s is in the signed list with another digest than %x, which this program has", pin.PackageName, digest)
}

// digestOf reads the digest in an instance ID: base64 of the digest and a byte that names the hash algorithm, of which 2 is SHA-256.
func digestOf(pin plugin.Pin) (digest [sha256.Size]byte, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(pin.InstanceID)
	if err != nil || len(raw) != sha256.Size+1 || raw[sha256.Size] != 2 {
		return digest, fmt.Errorf("instance %.80q of %s is named by no SHA-256 digest, and the signed list has no others",
			pin.InstanceID, pin.PackageName)
	}
	return [sha256.Size]byte(raw), nil
}

func parsePublicKey(text string) (ed25519.PublicKey, error) {
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, errors.New("--public-key is not what keygen printed: 32 bytes in base64")
	}
	return key, nil
}
