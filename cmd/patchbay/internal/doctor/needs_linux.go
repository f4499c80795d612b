package doctor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/launch/sealedexec"
)

// digestStep is the number of bytes that digestOf reads between two checks of its context.
const digestStep = 4 << 20

func checkCatalogue(ctx context.Context, s Subject) []Finding {
	var findings []Finding
	for _, p := range s.Plugins {
		if f := checkProgram(ctx, p); f.Status != OK {
			findings = append(findings, f)
		}
	}
	if len(s.Plugins) == 0 {
		return nil
	}
	return orOK(findings, fmt.Sprintf("the programs of %d plugins exist and can be run", len(s.Plugins)))
}

func checkProgram(ctx context.Context, p catalogue.Plugin) Finding {
	what := fmt.Sprintf("program %s of plugin %s", p.Command[0], p.Name)
	path, err := exec.LookPath(p.Command[0])
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fail(what+" is not in PATH", "install it, or write its absolute path as the first word of the plugin's command")
	case errors.Is(err, fs.ErrNotExist):
		return fail(what+" does not exist", "install it, or correct the first word of the plugin's command")
	case errors.Is(err, fs.ErrPermission):
		return fail(fmt.Sprintf("%s cannot be executed by user %d", what, os.Geteuid()),
			"chmod 0755 "+p.Command[0]+", make its directories accessible, or move it to a file system that is mounted without noexec")
	case err != nil:
		return fail(fmt.Sprintf("%s cannot be run: %v", what, errors.Unwrap(err)), "correct the first word of the plugin's command")
	}
	if err := sealedexec.Check(path); err != nil {
		return fail(fmt.Sprintf("%s cannot be run: %v", what, err), "install what is missing, or the program for this machine")
	}
	info, err := os.Stat(path)
	if p.SHA256 == "" {
		if err == nil && info.Mode().Perm()&0o002 != 0 {
			return fail(fmt.Sprintf("%s can be written by every user (mode %04o), and the daemon runs it", what, info.Mode().Perm()),
				"chmod 0755 "+path+", or set the plugin's sha256")
		}
		return ok("")
	}
	var digest string
	if err == nil {
		digest, err = digestOf(ctx, path, info)
	}
	switch {
	case err != nil:
		return fail(fmt.Sprintf("%s cannot be read to check its digest: %v", what, err),
			"make it readable to the daemon's user: chmod 0755 "+path)
	case !strings.EqualFold(digest, p.SHA256):
		return fail(fmt.Sprintf("%s has the SHA-256 %s and not %s: it will not be started", what, digest, p.SHA256),
			"install the program that is expected, or, if the new one is right, set the plugin's sha256 to its digest")
	}
	return ok("")
}

func digestOf(ctx context.Context, path string, info fs.FileInfo) (string, error) {
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file (%s)", filepath.Base(path), info.Mode())
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	for ctx.Err() == nil {
		if _, err := io.CopyN(sum, f, digestStep); errors.Is(err, io.EOF) {
			return hex.EncodeToString(sum.Sum(nil)), nil
		} else if err != nil {
			return "", err
		}
	}
	return "", context.Cause(ctx)
}

func checkFleet(ctx context.Context, s Subject) []Finding {
	if s.Fleet == nil {
		return nil
	}
	members := s.Fleet(ctx)
	var bad []Finding
	for _, m := range members {
		if m.Err != nil {
			// One reachable member is enough.
			bad = append(bad, warn(fmt.Sprintf("etcd %s: %v", m.Endpoint, m.Err),
				"check that etcd runs at fleet.etcd.endpoints, that no firewall blocks it, and that fleet.etcd.ca, cert and key are right; "+
					"the plugins of this node continue to work"))
		}
	}
	if len(bad) == len(members) {
		for i := range bad {
			bad[i].Status = Fail
		}
	}
	return orOK(append(bad, checkClusters(members)...), fmt.Sprintf("etcd answers at %d of %d endpoints", len(members), len(members)))
}

// checkClusters checks that all members of etcd belong to one cluster. If only some members were restored from a backup, a lock could have
// two holders.
func checkClusters(members []fleet.Member) (bad []Finding) {
	var first fleet.Member
	for _, m := range members {
		switch {
		case m.Cluster == 0:
		case first.Cluster == 0:
			first = m
		case m.Cluster != first.Cluster:
			bad = append(bad, fail(fmt.Sprintf("etcd %s and %s belong to different clusters", first.Endpoint, m.Endpoint),
				"name the members of one cluster in fleet.etcd.endpoints; to restore etcd, stop all members before the first one starts from the "+
					"backup, and keep the files STATE.tokens of the nodes"))
		}
	}
	return bad
}
