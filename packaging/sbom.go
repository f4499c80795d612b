package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// billOfMaterials writes a CycloneDX document that lists the modules that a program was linked from, as the program itself records them,
// and returns its path.
func (r *release) billOfMaterials(t target, program string) (string, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "", fmt.Errorf("cannot read what is in the program: %w", err)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	digest := sha256.Sum256(content)
	self := goModule(module, r.version)
	self.Type = cdx.ComponentTypeApplication
	self.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(digest[:])}}
	self.Licenses = &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}
	self.Properties = &[]cdx.Property{{Name: "goos", Value: t.os}, {Name: "goarch", Value: t.arch}, {Name: "commit", Value: r.commit}}

	components := []cdx.Component{goModule("stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		component := goModule(dep.Path, dep.Version)
		component.Properties = &[]cdx.Property{{Name: "go.sum", Value: dep.Sum}}
		components = append(components, component)
	}
	slices.SortFunc(components, func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	refs := make([]string, len(components))
	for i, c := range components {
		refs[i] = c.BOMRef
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = "urn:uuid:" + uuidOf(digest)
	bom.Metadata = &cdx.Metadata{Timestamp: r.time.Format(time.RFC3339), Component: &self}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: self.BOMRef, Dependencies: &refs}}

	var text bytes.Buffer
	if err := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return "", err
	}
	path := filepath.Join(r.stage, r.name(t)+".cdx.json")
	return path, os.WriteFile(path, text.Bytes(), 0o644)
}

func goModule(path, version string) cdx.Component {
	url := "pkg:golang/" + path + "@" + version
	return cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: url, Name: path, Version: version, PackageURL: url}
}

// uuidOf makes a UUID (RFC 9562, version 8) of a digest, so that a document about the same program has the same one.
func uuidOf(digest [sha256.Size]byte) string {
	u := digest[:16]
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
