//go:build linux

package main

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	maxPath = unix.PathMax - 1
	maxUses = 256 // paths at which one volume may be
)

// node makes volumes available at the paths that the host asks for.
type node struct {
	csi.UnimplementedNodeServer
	volumes  *store
	attach   attacher
	id       string
	topology *csi.Topology
}

func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.id, AccessibleTopology: n.topology}, nil
}

func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, rpc := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	} {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: rpc}},
		})
	}
	return response, nil
}

func (n *node) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if err := n.check(r.GetVolumeId(), r.GetStagingTargetPath(), r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	err := n.add(ctx, r.GetVolumeId(), r.GetStagingTargetPath(), use{Staging: true}, nil)
	if err != nil {
		return nil, asStatus(err)
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n *node) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := n.check(r.GetVolumeId(), r.GetTargetPath(), r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	u := use{ReadOnly: r.GetReadonly() ||
		r.GetVolumeCapability().GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY}
	err := n.add(ctx, r.GetVolumeId(), r.GetTargetPath(), u, func(v *volume) error {
		staging := r.GetStagingTargetPath()
		if !v.Uses[staging].Staging || !n.attach.isAt(n.volumes.dataPath(v.ID), staging, v.Uses[staging]) {
			return status.Errorf(codes.FailedPrecondition, "the volume is not staged at %.256q; call NodeStageVolume first", staging)
		}
		return nil
	})
	if err != nil {
		return nil, asStatus(err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// add makes a volume available at a path, if ready does not object. It records the use first, so that whatever a crash leaves at the path
// is known and can be undone.
func (n *node) add(ctx context.Context, id, path string, u use, ready func(*volume) error) error {
	return n.volumes.locked(ctx, func() error {
		v, err := n.volumes.get(id)
		if err != nil {
			return err
		}
		if ready != nil {
			if err := ready(v); err != nil {
				return err
			}
		}
		data := n.volumes.dataPath(id)
		if err := checkVacant(data, path); err != nil {
			return err
		}
		recorded, known := v.Uses[path]
		switch {
		case known && recorded != u:
			return status.Errorf(codes.AlreadyExists, "the volume is at %s in another way", path)
		case known && n.attach.isAt(data, path, u):
			return nil
		case !known && len(v.Uses) >= maxUses:
			return status.Errorf(codes.ResourceExhausted, "the volume is at %d paths already", maxUses)
		case !known:
			v.Uses[path] = u
			if err := n.volumes.save(v); err != nil {
				return err
			}
		}
		if err := n.attach.add(data, path, u); err != nil {
			// Nothing was made there, or it was undone; if that fails too, the record stays, and so does the way to undo it.
			if !known && detach(data, path, u) == nil {
				delete(v.Uses, path)
				_ = n.volumes.save(v)
			}
			return err
		}
		return nil
	})
}

func (n *node) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := n.remove(ctx, r.GetVolumeId(), r.GetTargetPath(), false); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (n *node) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if err := n.remove(ctx, r.GetVolumeId(), r.GetStagingTargetPath(), true); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// remove undoes add. A path at which the volume is not known to be is left alone, whatever is there, and is not an error.
func (n *node) remove(ctx context.Context, id, path string, staging bool) error {
	if id == "" || path == "" {
		return status.Error(codes.InvalidArgument, "the volume ID or the path is missing")
	}
	return asStatusOrNil(n.volumes.locked(ctx, func() error {
		v, err := n.volumes.get(id)
		if err != nil {
			return err
		}
		u, known := v.Uses[path]
		if !known || u.Staging != staging {
			return nil
		}
		if err := detach(n.volumes.dataPath(id), path, u); err != nil {
			return err
		}
		delete(v.Uses, path)
		return n.volumes.save(v)
	}))
}

// NodeGetVolumeStats gives the figures of the file system, because a directory has no quota of its own.
func (n *node) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if r.GetVolumeId() == "" || r.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume ID or the path is missing")
	}
	v, err := n.volumes.get(r.GetVolumeId())
	if err != nil {
		return nil, asStatus(err)
	}
	data, u := n.volumes.dataPath(v.ID), v.Uses[r.GetVolumePath()]
	if _, known := v.Uses[r.GetVolumePath()]; !known || !n.attach.isAt(data, r.GetVolumePath(), u) {
		return nil, status.Error(codes.NotFound, "the volume is not at that path")
	}
	var fsys unix.Statfs_t
	if err := unix.Statfs(data, &fsys); err != nil {
		return nil, asStatus(err)
	}
	bytes := func(blocks uint64) int64 { return int64(blocks) * fsys.Bsize }
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{
			Unit:  csi.VolumeUsage_BYTES,
			Total: bytes(fsys.Blocks), Available: bytes(fsys.Bavail), Used: bytes(fsys.Blocks - fsys.Bfree),
		},
		{
			Unit:  csi.VolumeUsage_INODES,
			Total: int64(fsys.Files), Available: int64(fsys.Ffree), Used: int64(fsys.Files - fsys.Ffree),
		},
	}}, nil
}

// check says what is wrong with a request to make a volume available at a path.
func (n *node) check(id, path string, way *csi.VolumeCapability) error {
	switch {
	case id == "" || path == "" || way == nil:
		return status.Error(codes.InvalidArgument, "the volume ID, the path or the volume capability is missing")
	case len(path) > maxPath || !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0):
		return status.Errorf(codes.InvalidArgument, "the path %.256q is not absolute and clean", path)
	case path == "/" || strings.HasPrefix(path+"/", n.volumes.dir+"/") || strings.HasPrefix(n.volumes.dir+"/", path+"/"):
		return status.Errorf(codes.InvalidArgument, "the path %.256q is that of the volumes themselves", path)
	}
	if err := supported(way); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

func asStatusOrNil(err error) error {
	if err == nil {
		return nil
	}
	return asStatus(err)
}
