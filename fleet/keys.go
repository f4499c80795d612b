package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// layoutVersion is part of every key, so that another layout can stand beside this one.
const layoutVersion = "v1"

// maxName is the greatest length in bytes of the name of a node and of a namespace; it is that of a host name.
const maxName = 253

// Space says where in etcd a fleet is kept. Fleets in different spaces do not see each other.
type Space struct {
	// Prefix begins every key (default /patchbay).
	Prefix string
	// Namespace separates fleets with one prefix (default "default"). It has letters, digits, ".", "-" and "_" only.
	Namespace string
}

// Validate says whether the space can be used.
func (s Space) Validate() error {
	if s.Namespace == "" {
		return nil
	}
	if err := validateName(s.Namespace); err != nil {
		return fmt.Errorf("namespace %q: %w", s.Namespace, err)
	}
	return nil
}

// Base returns what all keys of the space begin with; it ends with a slash. Other uses of the space, such as elections, put their keys
// beside nodes/ below it.
func (s Space) Base() string {
	return strings.TrimRight(cmp.Or(s.Prefix, "/patchbay"), "/") + "/" + cmp.Or(s.Namespace, "default") + "/" + layoutVersion + "/"
}

// NodeRange returns the range of keys that belong to one node: all that begin with it. Its daemon needs to read and write these, and
// nothing else below [Space.Base].
func (s Space) NodeRange(node string) string { return s.nodes() + node + "/" }

func (s Space) nodes() string { return s.Base() + "nodes/" }

// ValidateNode says whether a name can be that of a node.
func ValidateNode(name string) error {
	if err := validateName(name); err != nil {
		return fmt.Errorf("node name %q: %w", name, err)
	}
	return nil
}

func validateName(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty: give it one")
	case len(name) > maxName:
		return fmt.Errorf("it has %d bytes: use at most %d", len(name), maxName)
	case strings.Trim(name, ".") == "":
		return errors.New("it has dots only: use letters and digits too")
	}
	for _, r := range name {
		plain := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(".-_", r)
		if !plain {
			return fmt.Errorf(`it has the character %q: use letters, digits, ".", "-" and "_"`, r)
		}
	}
	return nil
}

// The keys of a node, below its range.
const (
	presenceKey = "presence"
	recordKey   = "record"
	pluginsKey  = "plugins/"
)

// slots is the number of places for the parts of a generation.
const slots = 2

// maxParts bounds the number of parts of a generation that a reader believes in.
const maxParts = 4096

// partKey returns the key of a part, below the range of its node.
func partKey(slot, part int) string { return fmt.Sprintf("%s%d/%04d", pluginsKey, slot, part) }

// partsFrom returns the range of the parts of a slot from one on.
func partsFrom(node string, slot, part int) (key, end string) {
	return node + partKey(slot, part), clientv3.GetPrefixRangeEnd(node + fmt.Sprintf("%s%d/", pluginsKey, slot))
}

// parsePart reads what partKey wrote.
func parsePart(key string) (slot, part int, ok bool) {
	rest, isPart := strings.CutPrefix(key, pluginsKey)
	first, second, both := strings.Cut(rest, "/")
	slot, err1 := strconv.Atoi(first)
	part, err2 := strconv.Atoi(second)
	ok = isPart && both && err1 == nil && err2 == nil && slot >= 0 && slot < slots && part >= 0 && part < maxParts
	return slot, part, ok && key == partKey(slot, part)
}
