//go:build linux

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// driver is a driver without its server.
type driver struct {
	*controller
	*node
	volumes *store
}

func newDriver(t *testing.T, root, way string) driver {
	t.Helper()
	volumes, err := openStore(root, 100)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { volumes.Close() })
	attach, err := newAttacher(way, volumes)
	if err != nil {
		t.Skip(err) // only mount can fail, and only where it is not allowed
	}
	topology := &csi.Topology{Segments: map[string]string{"hostdir.example.com/node": "n1"}}
	return driver{&controller{volumes: volumes, topology: topology}, &node{volumes: volumes, attach: attach, topology: topology}, volumes}
}

var writer = &csi.VolumeCapability{
	AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
}

func (d driver) create(t *testing.T, name string, bytes int64) (string, error) {
	t.Helper()
	r, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{writer}, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
	})
	return r.GetVolume().GetVolumeId(), err
}

func (d driver) mustCreate(t *testing.T, name string, bytes int64) string {
	t.Helper()
	id, err := d.create(t, name, bytes)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (d driver) publish(t *testing.T, id, staging, target string, readOnly bool) error {
	t.Helper()
	_, err := d.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, VolumeCapability: writer,
	})
	if err != nil {
		return err
	}
	_, err = d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: writer, Readonly: readOnly,
	})
	return err
}

func (d driver) unpublish(t *testing.T, id, staging, target string) error {
	t.Helper()
	_, err := d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	_, err2 := d.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
	return errors.Join(err, err2)
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("error is %v, want code %v", err, want)
	}
}

func stagingDir(t *testing.T) (staging, target string) {
	t.Helper()
	dir := t.TempDir()
	staging, target = filepath.Join(dir, "staging"), filepath.Join(dir, "target")
	if err := os.Mkdir(staging, 0o750); err != nil {
		t.Fatal(err)
	}
	return staging, target
}

func TestLifeOfAVolume(t *testing.T) {
	for _, way := range []string{attachMount, attachLink} {
		t.Run(way, func(t *testing.T) {
			root := t.TempDir()
			d := newDriver(t, root, way)
			id := d.mustCreate(t, "a volume/../..", 10)
			staging, target := stagingDir(t)
			for range 2 {
				if err := d.publish(t, id, staging, target, false); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(target, "file"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
			wantCode(t, err, codes.FailedPrecondition)
			wantCode(t, d.publish(t, id, staging, target, true), codes.AlreadyExists)

			d = newDriver(t, root, way) // another process
			if err := d.publish(t, id, staging, target, false); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(d.volumes.dataPath(id), "file")); err != nil {
				t.Errorf("what was written at the target is not in the volume: %v", err)
			}
			for range 2 {
				if err := d.unpublish(t, id, staging, target); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the target is still there: %v", err)
			}
			for range 2 {
				if _, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
					t.Fatal(err)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(root, "*", "*")); len(left) > 0 {
				t.Errorf("after the volume is deleted, there is %v", left)
			}
		})
	}
}

// What is at a path already is neither hidden nor lost, be it another volume.
func TestAPathThatIsTaken(t *testing.T) {
	for _, way := range []string{attachMount, attachLink} {
		t.Run(way, func(t *testing.T) {
			d := newDriver(t, t.TempDir(), way)
			a, b := d.mustCreate(t, "a", 1), d.mustCreate(t, "b", 1)
			staging, target := stagingDir(t)
			other, file := stagingDir(t)
			if err := d.publish(t, a, staging, target, false); err != nil {
				t.Fatal(err)
			}
			wantCode(t, d.publish(t, b, other, target, false), codes.FailedPrecondition)
			if way == attachMount {
				wantCode(t, d.publish(t, b, staging, target, false), codes.FailedPrecondition)
			}
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			wantCode(t, d.publish(t, b, other, file, false), codes.FailedPrecondition)
			if way == attachMount {
				wantCode(t, d.publish(t, b, filepath.Dir(other), target, false), codes.FailedPrecondition) // which is not empty
			}
			if err := errors.Join(d.unpublish(t, b, other, target), d.unpublish(t, a, staging, target)); err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{a, b} {
				if _, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestReadOnly(t *testing.T) {
	d := newDriver(t, t.TempDir(), attachMount)
	id := d.mustCreate(t, "v", 1)
	staging, target := stagingDir(t)
	if err := d.publish(t, id, staging, target, true); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(target, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing at a read-only target gave %v, want %v", err, unix.EROFS)
	}
	if err := d.unpublish(t, id, staging, target); err != nil {
		t.Fatal(err)
	}
	d = newDriver(t, d.volumes.dir, attachLink)
	wantCode(t, d.publish(t, id, staging, target, true), codes.FailedPrecondition)
	if _, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("deleting a staged volume gave %v", err)
	}
	if err := d.unpublish(t, id, staging, target); err != nil {
		t.Fatal(err)
	}
	if _, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Errorf("a publication that failed left the volume in use: %v", err)
	}
}

// An ID that is a path leads nowhere, and a path leads neither into the volumes nor away with what is not theirs.
func TestHostileInput(t *testing.T) {
	d := newDriver(t, t.TempDir(), attachLink)
	id := d.mustCreate(t, "v", 1)
	staging, target := stagingDir(t)
	for _, bad := range []string{"..", ".", "../volumes/" + id, id + "/../" + id, strings.ToUpper(idOf("b")), id + "\x00", "/", "lock"} {
		wantCode(t, d.publish(t, bad, staging, target, false), codes.NotFound)
		wantCode(t, d.unpublish(t, bad, staging, target), codes.NotFound)
		if _, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: bad}); err != nil {
			t.Errorf("deleting %q, which there is not: %v", bad, err)
		}
	}
	for _, bad := range []string{
		"/", "relative", target + "/", target + "/../x", target + "\x00", "/" + strings.Repeat("x", 5000),
		d.volumes.dir, d.volumes.dataPath(id), filepath.Dir(d.volumes.dir),
	} {
		wantCode(t, d.publish(t, id, bad, target, false), codes.InvalidArgument)
	}
	if err := d.publish(t, id, staging, target, false); err != nil {
		t.Fatal(err)
	}
	// Somebody else has put something at the target meanwhile.
	if err := errors.Join(os.Remove(target), os.WriteFile(target, []byte("precious"), 0o600)); err != nil {
		t.Fatal(err)
	}
	wantCode(t, d.unpublish(t, id, staging, target), codes.FailedPrecondition)
	if _, err := os.Stat(target); err != nil {
		t.Errorf("a file that is not the driver's is gone: %v", err)
	}
	if _, err := d.volumes.get(id); err != nil {
		t.Error(err)
	}
}

func TestCapacityIsKept(t *testing.T) {
	d := newDriver(t, t.TempDir(), attachLink)
	d.mustCreate(t, "a", 60)
	_, err := d.create(t, "b", 60)
	wantCode(t, err, codes.ResourceExhausted)
	_, err = d.create(t, "a", 61)
	wantCode(t, err, codes.AlreadyExists)
	if got := d.mustCreate(t, "a", 60); got != idOf("a") {
		t.Errorf("the same name gave the ID %s", got)
	}
	r, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	if err != nil || r.AvailableCapacity != 40 {
		t.Errorf("capacity is %v, %v, want 40", r, err)
	}
}

// Two instances of the driver never promise the same bytes.
func TestTwoInstances(t *testing.T) {
	root := t.TempDir()
	var made sync.Map
	var all sync.WaitGroup
	for range 2 {
		d := newDriver(t, root, attachLink)
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			all.Go(func() {
				if id, err := d.create(t, name, 30); err == nil {
					made.Store(id, true)
				} else if status.Code(err) != codes.ResourceExhausted {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	n := 0
	made.Range(func(any, any) bool { n++; return true })
	if n != 3 {
		t.Errorf("%d volumes of 30 bytes were made in 100", n)
	}
}

// Every volume is listed once, also if those of a page are deleted before the next one.
func TestListInPages(t *testing.T) {
	d := newDriver(t, t.TempDir(), attachLink)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		d.mustCreate(t, name, 1)
	}
	for _, deleted := range []bool{false, true} {
		if seen := d.list(t, deleted); len(seen) != 5 {
			t.Errorf("listed are %v, want five volumes", seen)
		}
	}
}

// list lists the volumes in pages of two, and deletes what it has listed if it is told.
func (d driver) list(t *testing.T, del bool) (seen []string) {
	t.Helper()
	var token string
	for {
		r, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range r.Entries {
			id := entry.Volume.VolumeId
			seen = append(seen, id)
			if !del {
				continue
			}
			if _, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
				t.Fatal(err)
			}
		}
		if token = r.NextToken; token == "" {
			return seen
		}
	}
}

// What a crash left half done is no volume, and goes.
func TestAfterACrash(t *testing.T) {
	root := t.TempDir()
	d := newDriver(t, root, attachLink)
	id := d.mustCreate(t, "v", 1)
	half := filepath.Join(root, scratchDir, "half", dataDir)
	if err := os.MkdirAll(half, 0o750); err != nil {
		t.Fatal(err)
	}
	torn := filepath.Join(root, volumesDir, id, recordFile+".new")
	if err := os.WriteFile(torn, []byte(`{"id":`), 0o600); err != nil {
		t.Fatal(err)
	}
	staging, target := stagingDir(t)
	v, err := d.volumes.get(id)
	if err != nil {
		t.Fatal(err)
	}
	v.Uses[target] = use{} // and then it was killed, before anything was at the target
	if err := d.volumes.save(v); err != nil {
		t.Fatal(err)
	}

	d = newDriver(t, root, attachLink)
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was half made is still there: %v", err)
	}
	if err := d.publish(t, id, staging, target, false); err != nil {
		t.Error(err)
	}
	if err := d.unpublish(t, id, staging, target); err != nil {
		t.Error(err)
	}
}
