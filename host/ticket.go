package host

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"strconv"
	"strings"
)

// ticket proves which plugin calls. Its number is no secret and finds the plugin; its secret is compared in constant time.
type ticket struct {
	number uint64
	secret [32]byte
}

func newTicket(number uint64) ticket {
	t := ticket{number: number}
	_, _ = rand.Read(t.secret[:]) // never fails
	return t
}

// String is the form in which a plugin presents its ticket.
func (t ticket) String() string {
	return strconv.FormatUint(t.number, 36) + "." + base64.RawURLEncoding.EncodeToString(t.secret[:])
}

// equal compares two tickets, in a time that does not depend on the secrets.
func (t ticket) equal(other ticket) bool {
	return t.number == other.number && subtle.ConstantTimeCompare(t.secret[:], other.secret[:]) == 1
}

// parseTicket is the inverse of String. It accepts nothing that String does not produce.
func parseTicket(s string) (t ticket, ok bool) {
	number, secret, found := strings.Cut(s, ".")
	if !found || len(secret) != base64.RawURLEncoding.EncodedLen(len(t.secret)) {
		return ticket{}, false
	}
	n, err := strconv.ParseUint(number, 36, 64)
	if err != nil || strconv.FormatUint(n, 36) != number {
		return ticket{}, false
	}
	t.number = n
	// The length is right, so only characters that do not belong there, line breaks included, make fewer bytes.
	decoded, err := base64.RawURLEncoding.Strict().Decode(t.secret[:], []byte(secret))
	return t, err == nil && decoded == len(t.secret)
}
