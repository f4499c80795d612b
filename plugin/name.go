package plugin

import (
	"cmp"
	"strings"
)

// Name identifies a plugin: its type and its name, which is unique within the type.
type Name struct{ Type, Name string }

// String returns TYPE/NAME.
func (n Name) String() string { return n.Type + "/" + n.Name }

// Compare orders names by type and name.
func (n Name) Compare(other Name) int {
	return cmp.Or(strings.Compare(n.Type, other.Type), strings.Compare(n.Name, other.Name))
}

// ParseName splits TYPE/NAME. The type ends at the first slash; the name may contain more. Neither is empty if ok is true.
func ParseName(text string) (n Name, ok bool) {
	n.Type, n.Name, _ = strings.Cut(text, "/")
	return n, n.Type != "" && n.Name != ""
}

// Info is what a plugin announces about itself.
type Info struct {
	Type, Name string
	// Endpoint is the path of the socket of its own services; empty for its registration socket.
	Endpoint string
	Versions []string
}

// PluginName returns the type and name.
func (i Info) PluginName() Name { return Name{i.Type, i.Name} }
