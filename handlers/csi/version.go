package csi

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// versionForm is a version as the kubelet reads it: numbers and dots, whatever follows them.
var versionForm = regexp.MustCompile(`^\s*v?(\d+(?:\.\d+)*)`)

// Negotiate returns the highest of the announced versions that is supported, which is one of 1.x. Versions above 1 and those that are
// malformed are passed over, as long as there is another. The error says what was announced, and what is supported.
//
// It decides as the kubelet does (HighestSupportedVersion of k8s.io/apimachinery/pkg/util/version).
func Negotiate(versions []string) (string, error) {
	if len(versions) == 0 {
		return "", errors.New("no CSI version was announced; announce one of 1.x")
	}
	var highest string
	var highestParts []uint64
	var malformed []error
	for _, version := range versions {
		parts, err := parseVersion(version)
		switch {
		case err != nil:
			malformed = append(malformed, err)
		case parts[0] == 1 && compareVersions(parts, highestParts) > 0:
			highest, highestParts = strings.TrimSpace(version), parts
		}
	}
	if highest != "" {
		return highest, nil
	}
	why := "none of the announced CSI versions %q is supported: only 1.x is"
	if announcesZero(versions) {
		why += ", and 0.x no more"
	}
	if len(malformed) > 0 {
		return "", fmt.Errorf(why+"; %w", versions, errors.Join(malformed...))
	}
	return "", fmt.Errorf(why, versions)
}

// announcesZero reports whether one of the versions is 0.x.
func announcesZero(versions []string) bool {
	return slices.ContainsFunc(versions, func(version string) bool {
		parts, err := parseVersion(version)
		return err == nil && parts[0] == 0
	})
}

// parseVersion returns the numbers of a version, two at least.
func parseVersion(version string) ([]uint64, error) {
	found := versionForm.FindStringSubmatch(version)
	if found == nil {
		return nil, fmt.Errorf("%q is no version, for example 1.9.0", version)
	}
	numbers := strings.Split(found[1], ".")
	if len(numbers) < 2 || len(numbers[0]) > 1 && numbers[0][0] == '0' {
		return nil, fmt.Errorf("%q is no version: two numbers at least, for example 1.9", version)
	}
	parts := make([]uint64, len(numbers))
	for i, number := range numbers {
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no version: the number %s is too large", version, number)
		}
		parts[i] = n
	}
	return parts, nil
}

// compareVersions compares as cmp.Compare does. A number that is missing counts as 0.
func compareVersions(a, b []uint64) int {
	for i := range max(len(a), len(b)) {
		var x, y uint64
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if c := cmp.Compare(x, y); c != 0 {
			return c
		}
	}
	return 0
}
