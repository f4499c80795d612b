package stablesocket

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	socketSuffix = ".sock"
	// shortMark precedes the digest in a shortened name. No escape contains it.
	shortMark = "~~"
	// digestLength is the length of a digest in base 32; shortLength is the length of the shortest name with a digest.
	digestLength = 16
	shortLength  = len(shortMark) + digestLength
	// MaxDir is the maximum length of a directory in which every type and name has a socket path.
	MaxDir = sock.MaxPath - len("/") - shortLength - len("/") - shortLength - len(socketSuffix)
)

var digestEncoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// socketPath returns the path of a plugin's stable socket, DIR/TYPE/NAME.sock. Type and name are encoded as file names:
//
//   - ASCII letters, digits, dots, hyphens and underscores stand for themselves, except a dot in front.
//   - Every other byte becomes a tilde and two hexadecimal digits: "a/b" is "a~2Fb".
//   - If the path would be too long for a socket, the name is cut, and two tildes and a digest of the whole name follow.
//
// Different plugins have different paths, unless digests of 80 bits collide.
func socketPath(dir string, p plugin.Name) string {
	room := sock.MaxPath - len(dir) - len("//") - len(socketSuffix)
	folder := fileName(p.Type, room-shortLength)
	return filepath.Join(dir, folder, fileName(p.Name, room-len(folder))+socketSuffix)
}

// fileName encodes text as a file name of at most length bytes. The length must be at least shortLength.
func fileName(text string, length int) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; isPlain(c) && (c != '.' || i > 0) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "~%02X", c)
		}
	}
	if b.Len() <= length {
		return b.String()
	}
	sum := sha256.Sum256([]byte(text))
	digest := strings.ToLower(digestEncoding.EncodeToString(sum[:]))[:digestLength]
	return b.String()[:length-shortLength] + shortMark + digest
}

// isStableName reports whether socketPath may have produced the name of a file.
func isStableName(file string) bool {
	name, ok := strings.CutSuffix(file, socketSuffix)
	return ok && name != "" && name[0] != '.' &&
		!strings.ContainsFunc(name, func(r rune) bool { return r != '~' && (r > 'z' || !isPlain(byte(r))) })
}

func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_'
}
