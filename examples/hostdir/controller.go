//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	defaultCapacity = 1 << 30
	maxPage         = 4096 // entries of a page of ListVolumes, which stays far below the 4 MiB of a message
	// maxText and maxNodeID are the bounds of CSI in bytes.
	maxText   = 128
	maxNodeID = 256
	// provisionerPrefix begins the parameters that Kubernetes adds by itself.
	provisionerPrefix = "csi.storage.k8s.io/"
)

// controller provides and deletes volumes.
type controller struct {
	csi.UnimplementedControllerServer
	volumes  *store
	topology *csi.Topology
}

func (c *controller) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, rpc := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
	} {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: rpc}},
		})
	}
	return response, nil
}

func (c *controller) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := c.checkCreate(r); err != nil {
		return nil, err
	}
	required, limit := r.GetCapacityRange().GetRequiredBytes(), r.GetCapacityRange().GetLimitBytes()
	v := &volume{ID: idOf(r.GetName()), Name: r.GetName(), Capacity: required}
	if v.Capacity == 0 {
		v.Capacity = defaultCapacity
		if limit > 0 {
			v.Capacity = min(v.Capacity, limit)
		}
	}
	err := c.volumes.locked(ctx, func() error {
		existing, err := c.volumes.get(v.ID)
		if err == nil {
			if existing.Capacity < required || limit > 0 && existing.Capacity > limit {
				return status.Errorf(codes.AlreadyExists, "the volume is there with %d bytes, which is not what is asked for", existing.Capacity)
			}
			v = existing
			return nil
		}
		if !errors.Is(err, errNoVolume) {
			return err
		}
		free, err := c.free()
		if err != nil {
			return err
		}
		if v.Capacity > free {
			return status.Errorf(codes.ResourceExhausted, "%d bytes are asked for and %d are free", v.Capacity, free)
		}
		return c.volumes.create(v)
	})
	if err != nil {
		return nil, asStatus(err)
	}
	return &csi.CreateVolumeResponse{Volume: c.describe(v)}, nil
}

// checkCreate says what is wrong with the request for a volume.
func (c *controller) checkCreate(r *csi.CreateVolumeRequest) error {
	required, limit := r.GetCapacityRange().GetRequiredBytes(), r.GetCapacityRange().GetLimitBytes()
	switch {
	case r.GetName() == "" || len(r.GetName()) > maxText:
		return status.Errorf(codes.InvalidArgument, "the name is missing or longer than %d bytes", maxText)
	case required < 0 || limit < 0:
		return status.Error(codes.InvalidArgument, "the capacity is negative")
	case limit > 0 && required > limit:
		return status.Error(codes.OutOfRange, "more bytes are required than the limit allows")
	case r.GetVolumeContentSource() != nil:
		return status.Error(codes.InvalidArgument, "a volume can only be made empty")
	case len(r.GetMutableParameters()) > 0:
		return status.Error(codes.InvalidArgument, "there are no parameters that could change")
	case !c.reachable(r.GetAccessibilityRequirements().GetRequisite()):
		return status.Errorf(codes.ResourceExhausted, "volumes are on %v only", c.topology.GetSegments())
	}
	for key := range r.GetParameters() {
		if !strings.HasPrefix(key, provisionerPrefix) {
			return status.Errorf(codes.InvalidArgument, "unknown parameter %.64q; there are none", key)
		}
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return status.Error(codes.InvalidArgument, "the volume capabilities are missing")
	}
	if err := supported(r.GetVolumeCapabilities()...); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

func (c *controller) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume ID is missing")
	}
	if err := c.volumes.remove(ctx, r.GetVolumeId()); err != nil {
		return nil, asStatus(err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ListVolumes lists the volumes in the order of their IDs. A token is the last ID of a page, so volumes that come and go between two pages
// disturb nothing.
func (c *controller) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	token, size := r.GetStartingToken(), int(r.GetMaxEntries())
	if size < 0 {
		return nil, status.Error(codes.InvalidArgument, "the number of entries is negative")
	}
	if token != "" && !isID(token) {
		return nil, status.Error(codes.Aborted, "the token is none of this driver; list from the beginning")
	}
	if size == 0 || size > maxPage {
		size = maxPage
	}
	ids, err := c.volumes.ids()
	if err != nil {
		return nil, asStatus(err)
	}
	response := &csi.ListVolumesResponse{}
	for _, id := range ids {
		if id <= token {
			continue
		}
		if len(response.Entries) == size {
			response.NextToken = response.Entries[size-1].GetVolume().GetVolumeId()
			break
		}
		v, err := c.volumes.get(id)
		if errors.Is(err, errNoVolume) {
			continue
		}
		if err != nil {
			return nil, asStatus(err)
		}
		response.Entries = append(response.Entries, &csi.ListVolumesResponse_Entry{Volume: c.describe(v)})
	}
	return response, nil
}

func (c *controller) GetCapacity(_ context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if t := r.GetAccessibleTopology(); t != nil && !c.reachable([]*csi.Topology{t}) {
		return &csi.GetCapacityResponse{}, nil
	}
	if supported(r.GetVolumeCapabilities()...) != nil {
		return &csi.GetCapacityResponse{}, nil //nolint:nilerr // there is no room for volumes that cannot be
	}
	free, err := c.free()
	if err != nil {
		return nil, asStatus(err)
	}
	return &csi.GetCapacityResponse{AvailableCapacity: free}, nil
}

func (c *controller) ValidateVolumeCapabilities(
	_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if r.GetVolumeId() == "" || len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the volume ID or the volume capabilities are missing")
	}
	if _, err := c.volumes.get(r.GetVolumeId()); err != nil {
		return nil, asStatus(err)
	}
	if err := supported(r.GetVolumeCapabilities()...); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil //nolint:nilerr // it is the answer
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}

// free returns how many bytes further volumes may have.
func (c *controller) free() (int64, error) {
	used, err := c.volumes.used()
	return max(0, c.volumes.capacity-used), err
}

// reachable says whether one of the places is this node. No places are every place.
func (c *controller) reachable(places []*csi.Topology) bool {
	return len(places) == 0 || slices.ContainsFunc(places, func(t *csi.Topology) bool { return proto.Equal(t, c.topology) })
}

func (c *controller) describe(v *volume) *csi.Volume {
	return &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Capacity, AccessibleTopology: []*csi.Topology{c.topology}}
}

// supported says why volumes cannot be used in one of the ways.
func supported(ways ...*csi.VolumeCapability) error {
	for _, way := range ways {
		mode := way.GetAccessMode().GetMode()
		switch {
		case way.GetMount() == nil:
			return errors.New("a volume is a directory; ask for the access type mount")
		case way.GetMount().GetFsType() != "" || len(way.GetMount().GetMountFlags()) > 0 || way.GetMount().GetVolumeMountGroup() != "":
			return errors.New("a volume is a directory; leave out the file system type, mount flags and mount group")
		case mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER && mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
			return fmt.Errorf("access mode %v is not supported; a volume is on one node", mode)
		}
	}
	return nil
}

// asStatus gives the errors of the store their codes.
func asStatus(err error) error {
	switch {
	case errors.Is(err, errNoVolume):
		return status.Error(codes.NotFound, err.Error())
	case errors.Is(err, errInUse):
		return status.Error(codes.FailedPrecondition, err.Error())
	case status.Code(err) != codes.Unknown:
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Internal, err.Error())
}
