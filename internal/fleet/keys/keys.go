// Package keys has the keys of a fleet in etcd, see docs/adr/0012-fleet.md: a [Space] returns them, and [Contenders] are the keys with
// which nodes compete for locks. It does not connect to etcd.
package keys

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// The keys of a node, below its range.
const (
	Presence = "presence"
	Record   = "record" // the complete record of the node, so that each change is one write
	Cordon   = "cordon" // exists while the node is drained; has no lease
)

const (
	layoutVersion = "v1" // part of every key
	maxName       = 253  // bytes of the name of a node or a namespace, as of a host name
)

// Space is the range of keys of a fleet in etcd. Fleets in different spaces do not see each other.
type Space struct {
	Prefix    string // the beginning of every key (default /patchbay)
	Namespace string // separates fleets with one prefix (default "default")
}

// Validate returns an error if the namespace has characters that are not allowed or is too long.
func (s Space) Validate() error {
	return validateName("namespace", cmp.Or(s.Namespace, "default"))
}

// Base returns the prefix of all keys of the space; it ends with a slash.
func (s Space) Base() string {
	return strings.TrimRight(cmp.Or(s.Prefix, "/patchbay"), "/") + "/" + cmp.Or(s.Namespace, "default") + "/" + layoutVersion + "/"
}

// NodeRange returns the prefix of the keys of one node. docs/how-to/fleet.md has the whole role of a node.
func (s Space) NodeRange(node string) string { return s.NodeSpace() + node + "/" }

// NodeSpace returns the prefix of the keys of all nodes.
func (s Space) NodeSpace() string { return s.Base() + "nodes/" }

// SettingsKey returns the key of the settings of a node.
func (s Space) SettingsKey(node string) string { return s.Base() + "settings/" + node }

// ValidateNode returns an error for the name of a node that is empty or too long, or has characters other than ASCII letters, digits, ".",
// "-" and "_".
func ValidateNode(name string) error { return validateName("node name", name) }

func validateName(what, name string) error {
	var problem string
	strange := strings.IndexFunc(name, isStrange)
	switch {
	case name == "":
		problem = "it is empty: give it one"
	case len(name) > maxName:
		problem = fmt.Sprintf("it has %d bytes: use at most %d", len(name), maxName)
	case strings.Trim(name, ".") == "":
		problem = "it has dots only: use letters and digits too"
	case strange >= 0:
		problem = fmt.Sprintf(`it has the character %q: use letters, digits, ".", "-" and "_"`, []rune(name[strange:])[0])
	default:
		return nil
	}
	return fmt.Errorf("%s %q: %s", what, name, problem)
}

func isStrange(r rune) bool {
	return (r < 'a' || 'z' < r) && (r < 'A' || 'Z' < r) && (r < '0' || '9' < r) && !strings.ContainsRune(".-_", r)
}

const maxLabels, maxLabel = 64, 128 // of a node, and the bytes of a key or a value

// ValidateLabels returns an error for more than 64 labels, and for keys and values with more than 128 bytes or with characters other than
// letters, digits, ".", "-", "_" and "/". A value may be empty.
func ValidateLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("there are %d labels: use at most %d", len(labels), maxLabels)
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		for _, text := range []string{key, labels[key]} {
			if strings.ContainsFunc(text, func(r rune) bool { return isStrange(r) && r != '/' }) || len(text) > maxLabel || key == "" {
				return fmt.Errorf(`label %q with value %q: use letters, digits, ".", "-", "_" and "/", at most %d, and a key that is not empty`,
					key, labels[key], maxLabel)
			}
		}
	}
	return nil
}

// IndexSpace returns the prefix of the keys of the index, where each node writes. The index lists the nodes that have a plugin of a name.
// It is only a hint: the record of the node counts, so a false key cannot send a call to another address.
func (s Space) IndexSpace() string { return s.Base() + "index/" }

// IndexRange returns the prefix of the keys for the plugins of a name. The place and the name of a node follow.
func (s Space) IndexRange(name string) string { return s.IndexSpace() + url.PathEscape(name) + "/" }

// IndexKey returns the key, without a value, that lists a node for the plugins of a name.
func (s Space) IndexKey(name, node string) string {
	return s.IndexRange(name) + placeOf(node) + "/" + node
}

// IndexedNode returns the node of a key in an index range. It reports false for another key.
func IndexedNode(indexRange, key string) (node string, ok bool) {
	rest, ok := strings.CutPrefix(key, indexRange)
	place, node, both := strings.Cut(rest, "/")
	return node, ok && both && ValidateNode(node) == nil && place == placeOf(node)
}

// placeOf returns the place of a node in the index: 8 hexadecimal digits, evenly distributed.
func placeOf(node string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node))
	// The last bytes of the text mostly change the low bits of the sum, which have to affect the high ones.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return fmt.Sprintf("%08x", (x^x>>33)>>32)
}
