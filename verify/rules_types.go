package verify

import (
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

var csiRules = []Rule{
	{
		ID: "CSI001", Title: "GetPluginInfo names the driver as it is registered", Type: registerapi.CSIPlugin,
		Why:    "The name ties volumes to the driver; with two names, they are looked for under one that nobody registered.",
		Remedy: "return the registered name from Identity.GetPluginInfo, and a vendor_version",
		Source: "CSI specification 1.13, GetPluginInfoResponse",
		check:  onEndpoint(checkPluginInfo),
	},
	{
		ID: "CSI002", Title: "GetPluginCapabilities answers", Type: registerapi.CSIPlugin,
		Why:    "From it, hosts learn whether there is a controller, and what the node has to say of topology.",
		Remedy: "implement Identity.GetPluginCapabilities; an empty list is allowed",
		Source: "CSI specification 1.13, GetPluginCapabilities",
		check:  onEndpoint(checkPluginCapabilities),
	},
	{
		ID: "CSI003", Title: "Probe says that the driver is ready", Type: registerapi.CSIPlugin,
		Why:    "Hosts wait with a driver that is not ready, or refuse it.",
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
		ID: "CSI005", Title: "NodeGetInfo names the node within the limits", Type: registerapi.CSIPlugin,
		Why: "The kubelet writes the node ID and the topology into the cluster when it registers the driver, and does not register one " +
			"that has none.",
		Remedy: "return a node_id of 1 to 256 bytes, max_volumes_per_node of zero or more, and a topology of at most 4 KiB",
		Source: "CSI specification 1.13, NodeGetInfoResponse, and Size Limits",
		check:  onEndpoint(checkNodeInfo),
	},
	{
		ID: "CSI006", Title: "The controller, if it is announced, answers", Type: registerapi.CSIPlugin,
		Why:    "A driver with the capability CONTROLLER_SERVICE is asked to make volumes.",
		Remedy: "implement Controller.ControllerGetCapabilities, or do not announce CONTROLLER_SERVICE",
		Source: "CSI specification 1.13, PluginCapability.Service.CONTROLLER_SERVICE",
		check:  onEndpoint(checkController),
	},
	{
		ID: "CSI007", Title: "The keys and values of the node's topology are well formed", Type: registerapi.CSIPlugin,
		Why: "Kubernetes makes labels of them; one that is malformed keeps the driver from being registered, or volumes from " +
			"being placed.",
		Remedy: "give keys a name of 1 to 63 letters, digits, '-', '_' and '.', after one lower-case domain name and a slash, and " +
			"values alike",
		Source: "CSI specification 1.13, Topology",
		check:  onEndpoint(checkTopology),
	},
	{
		ID: "CSI008", Title: "A driver whose node has a topology announces that it matters", Type: registerapi.CSIPlugin,
		Why:    "Without the capability the topology is not looked at, and volumes are made where their pods cannot run.",
		Remedy: "announce VOLUME_ACCESSIBILITY_CONSTRAINTS in GetPluginCapabilities, or return no accessible_topology",
		Source: "CSI specification 1.13, NodeGetInfoResponse.accessible_topology",
		check:  onEndpoint(checkTopologyAnnounced),
	},
	{
		ID: "CSI009", Title: "An announced expansion of volumes is there", Type: registerapi.CSIPlugin,
		Why:    "What grows volumes looks at the plugin's capability first, and then finds nobody to call.",
		Remedy: "announce EXPAND_VOLUME of the controller or, for ONLINE, of the node, or do not announce the expansion",
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
}

var deviceRules = []Rule{
	{
		ID: "DEV001", Title: "GetDevicePluginOptions answers", Type: registerapi.DevicePlugin,
		Why:    "It is the first call of the kubelet; a plugin that fails it gets no devices assigned.",
		Remedy: "implement DevicePlugin.GetDevicePluginOptions on the endpoint; an empty answer is allowed",
		Source: "deviceplugin/v1beta1 api.proto, GetDevicePluginOptions",
		check:  onEndpoint(checkDeviceOptions),
	},
	{
		ID: "DEV002", Title: "ListAndWatch lists the devices at once", Type: registerapi.DevicePlugin,
		Why:    "The node has no devices of the resource until the first list; a device without an ID or with one twice cannot be assigned.",
		Remedy: "send the whole list when the stream begins, each device with an ID of its own and health Healthy or Unhealthy",
		Source: "deviceplugin/v1beta1 api.proto, ListAndWatch and Device",
		check:  onEndpoint(checkDevices),
	},
	{
		ID: "DEV003", Title: "ListAndWatch lasts", Type: registerapi.DevicePlugin,
		Why:    "The end of the stream is the end of the plugin for the kubelet: it takes all devices away.",
		Remedy: "return from ListAndWatch only when its context ends or the plugin stops",
		Source: "deviceplugin/v1beta1 api.proto, ListAndWatch",
		check:  onEndpoint(checkDevicesLast),
	},
	{
		ID: "DEV004", Title: "A host that was killed gets the list again", Type: registerapi.DevicePlugin,
		Why:    "A host that starts again knows no devices until the list comes, and its old connection may not be noticed as dead yet.",
		Remedy: "send the whole list at the beginning of each ListAndWatch, also while another one is open",
		Source: "Kubernetes documentation, Device Plugins, Handling kubelet restarts",
		check:  onEndpoint(checkDevicesAgain),
	},
	{
		ID: "DEV005", Title: "Each later list is whole and well formed", Type: registerapi.DevicePlugin,
		Why:    "A list replaces the one before it: a device that is left out is gone, and a malformed list is refused.",
		Remedy: "send all devices in each message, not only those that changed",
		Source: "deviceplugin/v1beta1 api.proto, ListAndWatchResponse",
		check:  onEndpoint(checkLaterLists),
	},
	{
		ID: "DEV006", Title: "A preferred allocation keeps to the request", Type: registerapi.DevicePlugin,
		Why: "Hosts drop what they did not offer, and allocate something else than the plugin prefers.",
		Remedy: "choose allocation_size devices of those that are available, and all that must be included; or do not announce " +
			"get_preferred_allocation_available",
		Source: "deviceplugin/v1beta1 api.proto, PreferredAllocationRequest",
		check:  onEndpoint(checkPreferred),
	},
	{
		ID: "DEV007", Title: "Allocate answers for each container", Type: registerapi.DevicePlugin, Command: true,
		Why:    "The kubelet fails the pod if the answer has no entry for its container.",
		Remedy: "return one ContainerAllocateResponse for each container of the request, if need be an empty one",
		Source: "deviceplugin/v1beta1 api.proto, Allocate",
		check:  onEndpoint(checkAllocate),
	},
	{
		ID: "DEV008", Title: "Allocate of a device that is not to be had does no harm", Type: registerapi.DevicePlugin, Command: true,
		Why:    "A device may become unhealthy or go while a host is about to allocate it.",
		Remedy: "answer Allocate of an unhealthy or unknown device with an error, and serve on",
		Source: "deviceplugin/v1beta1 api.proto, AllocateResponse, Failure Handling",
		check:  onEndpoint(checkAllocateSick),
	},
	{
		ID: "DEV009", Title: "PreStartContainer answers if the plugin wants it", Type: registerapi.DevicePlugin, Command: true,
		Why:    "The kubelet calls it before each container that has devices of the plugin, and does not start the container if it fails.",
		Remedy: "implement PreStartContainer, or do not announce pre_start_required",
		Source: "deviceplugin/v1beta1 api.proto, PreStartContainer",
		check:  onEndpoint(checkPreStart),
	},
	{
		ID: "KUB001", Title: "The plugin registers on kubelet.sock with what the kubelet accepts", Type: registerapi.DevicePlugin, Command: true,
		Why: "The kubelet refuses a registration with another version, a malformed resource name or an endpoint that is a path.",
		Remedy: "call Register with version v1beta1, an extended resource such as example.com/gpu, and the name of the socket without its " +
			"directory",
		Source: "deviceplugin/v1beta1 api.proto, RegisterRequest",
		check:  checkRegistered,
	},
	{
		ID: "KUB002", Title: "The plugin registers again when the kubelet restarts", Type: registerapi.DevicePlugin, Command: true,
		Why: "A kubelet that starts removes the sockets of device plugins and knows none of them. The node has no devices of the resource " +
			"until the plugin serves and registers again.",
		Remedy: "watch the directory of kubelet.sock; when kubelet.sock is made anew, make the plugin's socket again and call Register",
		Source: "Kubernetes documentation, Device Plugins, Handling kubelet restarts",
		check:  checkRegistersAgain,
	},
}

var draRules = []Rule{
	{
		ID: "DRA001", Title: "NodePrepareResources can be called in each announced version", Type: registerapi.DRAPlugin,
		Why:    "The kubelet calls the highest version that the driver announces; pods with claims do not start if it is not there.",
		Remedy: "register the gRPC service of each announced version on the endpoint, or announce fewer",
		Source: "dra/v1 api.proto, NodePrepareResources",
		check:  onEndpoint(checkPrepare),
	},
	{
		ID: "DRA002", Title: "NodeUnprepareResources can be called in each announced version", Type: registerapi.DRAPlugin,
		Why:    "Without it, pods with claims do not end.",
		Remedy: "implement NodeUnprepareResources in the gRPC service of each announced version",
		Source: "dra/v1 api.proto, NodeUnprepareResources",
		check:  onEndpoint(checkUnprepare),
	},
	{
		ID: "DRA003", Title: "Each claim is answered for by its UID", Type: registerapi.DRAPlugin,
		Why: "The kubelet asks again and again for claims that an answer leaves out, and takes one that it did not ask for as " +
			"an error of the driver.",
		Remedy: "return an entry for each claim of the request, with its UID as the key and, if it failed, an error; or fail the call",
		Source: "dra/v1 api.proto, NodePrepareResourcesResponse.claims",
		check:  onEndpoint(checkByClaim),
	},
	{
		ID: "DRA004", Title: "Prepare is idempotent", Type: registerapi.DRAPlugin,
		Why: "The kubelet prepares a claim for each pod that uses it, and again after its own restart; other devices than " +
			"before are given to a container that has none of them.",
		Remedy: "remember by the UID what a claim was given, and answer the same again",
		Source: "k8s.io/dynamic-resource-allocation/kubeletplugin, DRAPlugin.PrepareResourceClaims",
		check:  withClaims(checkPrepareAgain),
	},
	{
		ID: "DRA005", Title: "Prepared devices are named in full", Type: registerapi.DRAPlugin,
		Why:    "Pool and name tie a device to the claim's allocation, and the runtime looks up CDI IDs by their full names.",
		Remedy: "set pool_name and device_name, and write CDI device IDs as VENDOR/CLASS=DEVICE",
		Source: "dra/v1 api.proto, Device; CDI specification, qualified names",
		check:  withClaims(checkPreparedDevices),
	},
	{
		ID: "DRA006", Title: "Unprepare is idempotent", Type: registerapi.DRAPlugin,
		Why:    "The kubelet unprepares again after an error or a restart. A driver that fails then keeps the pod from ending for ever.",
		Remedy: "answer without an error for a claim that is not prepared any more",
		Source: "k8s.io/dynamic-resource-allocation/kubeletplugin, DRAPlugin.UnprepareResourceClaims",
		check:  withClaims(checkUnprepareAgain),
	},
	{
		ID: "DRA007", Title: "What was prepared survives the restart of the driver", Type: registerapi.DRAPlugin, Command: true,
		Why:    "The driver may be upgraded or crash between the two calls, while the container runs.",
		Remedy: "keep on disk what each claim was given, or find it again from the claim",
		Source: "k8s.io/dynamic-resource-allocation/kubeletplugin, DRAPlugin.PrepareResourceClaims",
		check:  withClaims(checkRestartBetween),
	},
	{
		ID: "DRA008", Title: "An error of one claim is none of the others", Type: registerapi.DRAPlugin,
		Why:    "Pods whose claims could be prepared would not start because of another pod's.",
		Remedy: "put the error of a claim into its entry in the answer, and go on with the others",
		Source: "dra/v1 api.proto, NodePrepareResources",
		check:  withClaims(checkErrorsByClaim),
	},
	{
		ID: "DRA009", Title: "Two instances serve side by side", Type: registerapi.DRAPlugin, Command: true,
		Why: "In a rolling update the new driver starts before the old one ends, so that there is always one to call.",
		Remedy: "give each instance a registration socket and an endpoint of its own, and start a rolling update with what " +
			"{instance} stands for; remove no socket of the other",
		Source: "k8s.io/dynamic-resource-allocation/kubeletplugin, RollingUpdate",
		check:  onEndpoint(checkRollOver),
	},
	{
		ID: "DRA010", Title: "The health of devices is told for as long as the stream lasts", Type: registerapi.DRAPlugin,
		Why: "The kubelet watches it for as long as the driver is registered, and takes devices that it hears nothing of as unknown.",
		Remedy: "implement NodeWatchResources so that it returns only when its context ends, with pool and name of each device; or " +
			"do not announce v1alpha1.DRAResourceHealth",
		Source: "dra-health/v1alpha1 api.proto, NodeWatchResources",
		check:  onEndpoint(checkDeviceHealth),
	},
}
