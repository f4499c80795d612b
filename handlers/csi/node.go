package csi

import (
	"encoding/json"
	"fmt"
	"strconv"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// Keys of the details that the handler stores in the registry with each driver.
const (
	// KeyVersion is the negotiated CSI version, for example 1.9.0.
	KeyVersion = "csi/version"
	// KeyCapabilities are the capabilities of the plugin by their names in the specification, sorted and separated by commas, for example
	// CONTROLLER_SERVICE,VOLUME_ACCESSIBILITY_CONSTRAINTS. It is missing if the plugin has none.
	KeyCapabilities = "csi/capabilities"
	// The fields of NodeInfo: a text, a decimal number and a JSON object of texts. A key is missing if the driver does not set it.
	keyNodeID            = "csi/node-id"
	keyMaxVolumesPerNode = "csi/max-volumes-per-node"
	keyTopology          = "csi/topology"
)

// Limits of the CSI specification, in bytes.
const (
	maxString = 128
	maxMap    = 4 << 10
	maxNodeID = 256
	// maxAnswer bounds one answer: at these limits, the largest, with a map, is half of it.
	maxAnswer = 16 << 10
)

// NodeInfo is a driver's information about the node that it runs on.
type NodeInfo struct {
	// NodeID is the driver's ID for this node; not empty.
	NodeID string
	// MaxVolumesPerNode is the maximum number of volumes that can be published to the node; 0 if the driver sets no limit.
	MaxVolumesPerNode int64
	// Topology says where the node is accessible from, for example its zone; empty if the driver does not set it.
	Topology map[string]string
}

// NodeInfoOf returns the information about the node that a driver gave when it was registered. info is its registry entry, of type
// CSIPlugin, csi-node or csi-controller. ok is false if the driver gave none, or another handler registered it.
func NodeInfoOf(info *dynamicplugins.PluginInfo) (_ NodeInfo, ok bool) {
	if info == nil || info.Options[keyNodeID] == "" {
		return NodeInfo{}, false
	}
	node := NodeInfo{NodeID: info.Options[keyNodeID]}
	if s := info.Options[keyMaxVolumesPerNode]; s != "" {
		limit, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return NodeInfo{}, false
		}
		node.MaxVolumesPerNode = limit
	}
	if s := info.Options[keyTopology]; s != "" && json.Unmarshal([]byte(s), &node.Topology) != nil {
		return NodeInfo{}, false
	}
	return node, true
}

func (n NodeInfo) addTo(details map[string]string) error {
	details[keyNodeID] = n.NodeID
	if n.MaxVolumesPerNode > 0 {
		details[keyMaxVolumesPerNode] = strconv.FormatInt(n.MaxVolumesPerNode, 10)
	}
	if len(n.Topology) == 0 {
		return nil
	}
	topology, err := json.Marshal(n.Topology)
	details[keyTopology] = string(topology)
	return err
}

// nodeInfo checks the answer of NodeGetInfo against the limits of the specification.
func nodeInfo(answer *csipb.NodeGetInfoResponse) (NodeInfo, error) {
	n := NodeInfo{
		NodeID:            answer.GetNodeId(),
		MaxVolumesPerNode: answer.GetMaxVolumesPerNode(),
		Topology:          answer.GetAccessibleTopology().GetSegments(),
	}
	if err := untrusted.Required("the node ID", n.NodeID, maxNodeID); err != nil {
		return NodeInfo{}, err
	}
	if n.MaxVolumesPerNode < 0 {
		return NodeInfo{}, fmt.Errorf("max_volumes_per_node is %d; it must not be negative", n.MaxVolumesPerNode)
	}
	size := 0
	for key, value := range n.Topology {
		size += len(key) + len(value)
	}
	if size > maxMap {
		return NodeInfo{}, fmt.Errorf("the topology is larger than the %d bytes that are allowed", maxMap)
	}
	return n, untrusted.Topology(n.Topology)
}
