package verify

import (
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

var csiRules = []Rule{
	{
		ID: "CSI001", Title: "GetPluginInfo names the driver as it is registered", Type: registerapi.CSIPlugin,
		Why:    "The name ties volumes to the driver; if the two differ, hosts look for the driver under a name that nobody registered.",
		Remedy: "return the registered name from Identity.GetPluginInfo, and a vendor_version",
		Source: "CSI specification 1.13, GetPluginInfoResponse",
		check:  onEndpoint(checkPluginInfo),
	},
	{
		ID: "CSI002", Title: "GetPluginCapabilities answers", Type: registerapi.CSIPlugin,
		Why:    "It tells hosts whether there is a controller, and whether topology matters.",
		Remedy: "implement Identity.GetPluginCapabilities; an empty list is allowed",
		Source: "CSI specification 1.13, GetPluginCapabilities",
		check:  onEndpoint(checkPluginCapabilities),
	},
	{
		ID: "CSI003", Title: "Probe says that the driver is ready", Type: registerapi.CSIPlugin,
		Why:    "Hosts wait for a driver that is not ready, or refuse it.",
		Remedy: "implement Identity.Probe: answer without \"ready\" or with true as soon as the driver works",
		Source: "CSI specification 1.13, ProbeResponse.ready",
		check:  onEndpoint(checkProbe),
	},
	{
		ID: "CSI004", Title: "NodeGetCapabilities answers", Type: registerapi.CSIPlugin,
		Why:    "It is the first call before each mount: without it no volume is staged or published.",
		Remedy: "implement Node.NodeGetCapabilities on the endpoint; an empty list is allowed",
		Source: "CSI specification 1.13, NodeGetCapabilities",
		check:  onEndpoint(checkNodeCapabilities),
	},
	{
		ID: "CSI005", Title: "NodeGetInfo identifies the node within the limits", Type: registerapi.CSIPlugin,
		Why: "The kubelet writes the node ID and the topology into the cluster when it registers the driver, and does not register one " +
			"without a node ID.",
		Remedy: "return a node_id of 1 to 256 bytes, max_volumes_per_node of zero or more, and a topology of at most 4 KiB",
		Source: "CSI specification 1.13, NodeGetInfoResponse, and Size Limits",
		check:  onEndpoint(checkNodeInfo),
	},
	{
		ID: "CSI006", Title: "The controller, if it is announced, answers", Type: registerapi.CSIPlugin,
		Why:    "A driver with the capability CONTROLLER_SERVICE is asked to create volumes.",
		Remedy: "implement Controller.ControllerGetCapabilities, or do not announce CONTROLLER_SERVICE",
		Source: "CSI specification 1.13, PluginCapability.Service.CONTROLLER_SERVICE",
		check:  onEndpoint(checkController),
	},
	{
		ID: "CSI007", Title: "The keys and values of the node's topology are well formed", Type: registerapi.CSIPlugin,
		Why: "Kubernetes turns them into labels; a malformed one keeps the driver from being registered, or volumes from being " +
			"placed.",
		Remedy: "give each key a name of 1 to 63 letters, digits, '-', '_' and '.', after a lower-case domain name and a slash; the same " +
			"goes for values, without the domain",
		Source: "CSI specification 1.13, Topology",
		check:  onEndpoint(checkTopology),
	},
	{
		ID: "CSI008", Title: "A driver whose node has a topology announces that it matters", Type: registerapi.CSIPlugin,
		Why:    "Without the capability the topology is ignored, and volumes are created where their pods cannot run.",
		Remedy: "announce VOLUME_ACCESSIBILITY_CONSTRAINTS in GetPluginCapabilities, or return no accessible_topology",
		Source: "CSI specification 1.13, NodeGetInfoResponse.accessible_topology",
		check:  onEndpoint(checkTopologyAnnounced),
	},
	{
		ID: "CSI009", Title: "An announced expansion of volumes is implemented", Type: registerapi.CSIPlugin,
		Why:    "A resizer relies on the plugin's capability, and then finds nothing to call.",
		Remedy: "announce EXPAND_VOLUME of the controller or, for ONLINE, of the node; or do not announce VolumeExpansion",
		Source: "CSI specification 1.13, PluginCapability.VolumeExpansion",
		check:  onEndpoint(checkExpansion),
	},
	{
		ID: "CSI010", Title: "The manifest is within the limits", Type: registerapi.CSIPlugin,
		Why:    "Hosts refuse fields that are larger than CSI allows.",
		Remedy: "keep all keys and values of GetPluginInfo's manifest within 4 KiB",
		Source: "CSI specification 1.13, Size Limits",
		check:  onEndpoint(checkManifest),
	},
	{
		ID: "CSI011", Title: "The group controller, if it is announced, answers", Type: registerapi.CSIPlugin,
		Why:    "A driver with the capability GROUP_CONTROLLER_SERVICE is asked for snapshots of groups.",
		Remedy: "implement GroupController.GroupControllerGetCapabilities, or do not announce GROUP_CONTROLLER_SERVICE",
		Source: "CSI specification 1.13, PluginCapability.Service.GROUP_CONTROLLER_SERVICE",
		check:  onEndpoint(checkGroupController),
	},
	{
		ID: "CSI012", Title: "A controller capability comes with those that it requires", Type: registerapi.CSIPlugin,
		Why:    "Hosts and sidecars that find one rely on the other, and make calls that are not implemented.",
		Remedy: "announce PUBLISH_UNPUBLISH_VOLUME with LIST_VOLUMES_PUBLISHED_NODES, and GET_VOLUME_HEALTH with LIST_VOLUME_HEALTH",
		Source: "CSI specification 1.13, ControllerServiceCapability.RPC, ControllerListVolumeHealth",
		check:  onEndpoint(checkCapabilitiesTogether),
	},
	{
		ID: "CSI015", Title: "GetCapacity returns no negative size", Type: registerapi.CSIPlugin,
		Why:    "Schedulers place volumes by it; with a negative size nothing fits, or everything.",
		Remedy: "return available_capacity, maximum_volume_size and minimum_volume_size of zero or more, or do not announce GET_CAPACITY",
		Source: "CSI specification 1.13, GetCapacityResponse",
		check:  onEndpoint(checkCapacity),
	},
}

var deviceRules = []Rule{
	{
		ID: "DEV001", Title: "GetDevicePluginOptions answers", Type: registerapi.DevicePlugin,
		Why:    "It is the kubelet's first call; if it fails, none of the plugin's devices are assigned.",
		Remedy: "implement DevicePlugin.GetDevicePluginOptions on the endpoint; an empty answer is allowed",
		Source: "deviceplugin/v1beta1 api.proto, GetDevicePluginOptions",
		check:  onEndpoint(checkDeviceOptions),
	},
	{
		ID: "DEV002", Title: "ListAndWatch lists the devices at once", Type: registerapi.DevicePlugin,
		Why:    "The node has no devices of the resource until the first list; a device without a unique ID cannot be assigned.",
		Remedy: "send the whole list when the stream begins, each device with a unique ID and health Healthy or Unhealthy",
		Source: "deviceplugin/v1beta1 api.proto, ListAndWatch and Device",
		check:  onEndpoint(checkDevices),
	},
	{
		ID: "DEV003", Title: "ListAndWatch stays open", Type: registerapi.DevicePlugin,
		Why:    "When the stream ends, the kubelet considers the plugin gone and withdraws all its devices.",
		Remedy: "return from ListAndWatch only when its context ends or the plugin stops",
		Source: "deviceplugin/v1beta1 api.proto, ListAndWatch",
		check:  onEndpoint(checkDevicesLast),
	},
	{
		ID: "DEV004", Title: "After a crash the host gets the list again", Type: registerapi.DevicePlugin,
		Why:    "A restarted host knows no devices until the list arrives, and the plugin may not have noticed that the old connection is dead.",
		Remedy: "send the whole list at the beginning of each ListAndWatch, also while another one is open",
		Source: "Kubernetes documentation, Device Plugins, Handling kubelet restarts",
		check:  onEndpoint(checkDevicesAgain),
	},
	{
		ID: "DEV005", Title: "Each later list is complete and well formed", Type: registerapi.DevicePlugin,
		Why:    "Each list replaces the previous one: a device that is missing is gone, and a malformed list is refused.",
		Remedy: "send all devices in each message, not only those that changed",
		Source: "deviceplugin/v1beta1 api.proto, ListAndWatchResponse",
		check:  onEndpoint(checkLaterLists),
	},
	{
		ID: "DEV010", Title: "A change of the devices is reported at once", Type: registerapi.DevicePlugin,
		Why: "Until the list arrives, the node offers devices that are broken or gone, and pods fail on them.",
		Remedy: "watch the devices for as long as ListAndWatch is open, and send the whole list on each open stream when a device appears, " +
			"disappears or changes its health",
		Source: "deviceplugin/v1beta1 api.proto, ListAndWatch",
		check:  onEndpoint(checkChange),
	},
	{
		ID: "DEV006", Title: "A preferred allocation respects the request", Type: registerapi.DevicePlugin,
		Why: "Hosts discard devices that they did not offer, and allocate others than the plugin prefers.",
		Remedy: "choose allocation_size of the available devices, including all that must be included; or do not announce " +
			"get_preferred_allocation_available",
		Source: "deviceplugin/v1beta1 api.proto, PreferredAllocationRequest",
		check:  onEndpoint(checkPreferred),
	},
	{
		ID: "DEV007", Title: "Allocate answers for each container", Type: registerapi.DevicePlugin, Command: true,
		Why:    "The kubelet fails the pod if the answer has no entry for its container.",
		Remedy: "return one ContainerAllocateResponse for each container of the request, even if it is empty",
		Source: "deviceplugin/v1beta1 api.proto, Allocate",
		check:  onEndpoint(checkAllocate),
	},
	{
		ID: "DEV008", Title: "Allocating an unavailable device does no harm", Type: registerapi.DevicePlugin, Command: true,
		Why:    "A device may become unhealthy or disappear while a host is about to allocate it.",
		Remedy: "answer Allocate for an unhealthy or unknown device, best with an error, and keep serving",
		Source: "deviceplugin/v1beta1 api.proto, AllocateResponse, Failure Handling",
		check:  onEndpoint(checkAllocateSick),
	},
	{
		ID: "DEV009", Title: "PreStartContainer answers if it is announced", Type: registerapi.DevicePlugin, Command: true,
		Why:    "The kubelet calls it before each container that has devices of the plugin, and does not start the container if it fails.",
		Remedy: "implement PreStartContainer, or do not announce pre_start_required",
		Source: "deviceplugin/v1beta1 api.proto, PreStartContainer",
		check:  onEndpoint(checkPreStart),
	},
	{
		ID: "KUB001", Title: "The plugin registers on kubelet.sock as the kubelet requires", Type: registerapi.DevicePlugin, Command: true,
		Why: "The kubelet refuses a registration with another version, a malformed resource name, or a path as endpoint.",
		Remedy: "call Register with version v1beta1, an extended resource such as example.com/gpu, and the name of the socket without its " +
			"directory",
		Source: "deviceplugin/v1beta1 api.proto, RegisterRequest",
		check:  checkRegistered,
	},
	{
		ID: "KUB002", Title: "The plugin registers again when the kubelet restarts", Type: registerapi.DevicePlugin, Command: true,
		Why: "A kubelet that starts removes the sockets of device plugins and knows none of them. The node has no devices of the resource " +
			"until the plugin serves and registers again.",
		Remedy: "watch the directory of kubelet.sock; when kubelet.sock is recreated, recreate the plugin's socket and call Register again",
		Source: "Kubernetes documentation, Device Plugins, Handling kubelet restarts",
		check:  checkRegistersAgain,
	},
}

var draRules = []Rule{
	{
		ID: "DRA001", Title: "NodePrepareResources can be called in each announced version", Type: registerapi.DRAPlugin,
		Why:    "The kubelet calls the highest version that the driver announces; if it is missing, pods with claims do not start.",
		Remedy: "register the gRPC service of each announced version on the endpoint, or announce fewer",
		Source: "dra/v1 api.proto, NodePrepareResources",
		check:  onEndpoint(checkPrepare),
	},
	{
		ID: "DRA002", Title: "NodeUnprepareResources can be called in each announced version", Type: registerapi.DRAPlugin,
		Why:    "Without it, pods with claims never terminate.",
		Remedy: "implement NodeUnprepareResources in the gRPC service of each announced version",
		Source: "dra/v1 api.proto, NodeUnprepareResources",
		check:  onEndpoint(checkUnprepare),
	},
	{
		ID: "DRA003", Title: "Each claim is answered by its UID", Type: registerapi.DRAPlugin,
		Why: "The kubelet asks again and again for claims that an answer leaves out, and treats one that it did not ask for as " +
			"an error.",
		Remedy: "return an entry for each claim of the request, with its UID as the key and, if it failed, an error; or fail the call",
		Source: "dra/v1 api.proto, NodePrepareResourcesResponse.claims",
		check:  onEndpoint(checkByClaim),
	},
	{
		ID: "DRA004", Title: "Prepare is idempotent", Type: registerapi.DRAPlugin,
		Why: "The kubelet prepares a claim for each pod that uses it, and again after its own restart; if the devices differ, a " +
			"container is told of devices that it does not have.",
		Remedy: "remember by UID which devices a claim was given, and return the same again",
		Source: "k8s.io/dynamic-resource-allocation/kubeletplugin, DRAPlugin.PrepareResourceClaims",
		check:  withClaims(checkPrepareAgain),
	},
	{
		ID: "DRA005", Title: "Prepared devices have full names", Type: registerapi.DRAPlugin,
		Why:    "Pool and name tie a device to the claim's allocation, and the runtime looks up CDI IDs by their full names.",
		Remedy: "set pool_name and device_name, and write CDI device IDs as VENDOR/CLASS=DEVICE",
		Source: "dra/v1 api.proto, Device; CDI specification, qualified names",
		check:  withClaims(checkPreparedDevices),
	},
	{
		ID: "DRA006", Title: "Unprepare is idempotent", Type: registerapi.DRAPlugin,
		Why:    "The kubelet unprepares again after an error or a restart. If the driver fails then, the pod never terminates.",
		Remedy: "return no error for a claim that is no longer prepared",
		Source: "k8s.io/dynamic-resource-allocation/kubeletplugin, DRAPlugin.UnprepareResourceClaims",
		check:  withClaims(checkUnprepareAgain),
	},
	{
		ID: "DRA007", Title: "Prepared claims survive a restart of the driver", Type: registerapi.DRAPlugin, Command: true,
		Why:    "The driver may be upgraded or crash between prepare and unprepare, while the container runs.",
		Remedy: "save on disk which devices each claim was given, or derive them from the claim",
		Source: "k8s.io/dynamic-resource-allocation/kubeletplugin, DRAPlugin.PrepareResourceClaims",
		check:  withClaims(checkRestartBetween),
	},
	{
		ID: "DRA008", Title: "An error of one claim does not affect the others", Type: registerapi.DRAPlugin,
		Why:    "Otherwise pods whose claims could be prepared do not start because of another pod's claim.",
		Remedy: "put the error of a claim into its entry in the answer, and continue with the others",
		Source: "dra/v1 api.proto, NodePrepareResources",
		check:  withClaims(checkErrorsByClaim),
	},
	{
		ID: "DRA009", Title: "Two instances serve side by side", Type: registerapi.DRAPlugin, Command: true,
		Why: "In a rolling update the new driver starts before the old one stops, so that one is always available.",
		Remedy: "give each instance its own registration socket and endpoint, named with {instance} in a rolling update; do not remove " +
			"the other's sockets",
		Source: "k8s.io/dynamic-resource-allocation/kubeletplugin, RollingUpdate",
		check:  onEndpoint(checkRollOver),
	},
	{
		ID: "DRA010", Title: "The health of devices is reported until the stream ends", Type: registerapi.DRAPlugin,
		Why: "The kubelet watches it for as long as the driver is registered, and treats devices without a report as unknown.",
		Remedy: "implement NodeWatchResources so that it reports pool and name of each device and returns only when its context ends; or " +
			"announce neither v1.DRAResourceHealth nor v1alpha1.DRAResourceHealth",
		Source: "dra-health/v1 api.proto, NodeWatchResources",
		check:  onEndpoint(checkDeviceHealth),
	},
}
