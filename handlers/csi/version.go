package csi

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// versionForm is a version as the kubelet reads it: numbers and dots, whatever follows them.
var versionForm = regexp.MustCompile(`^\s*v?((?:0|[1-9]\d*)(?:\.\d+)+)`)

// negotiate returns the highest of the announced versions that is supported, which is one of 1.x. Versions above 1 and those that are
// malformed are passed over, as long as there is another. The error says what was announced, and what is supported.
//
// It decides as the kubelet does (HighestSupportedVersion of k8s.io/apimachinery/pkg/util/version).
func negotiate(versions []string) (string, error) {
	if len(versions) == 0 {
		return "", errors.New("no CSI version was announced; announce one of 1.x")
	}
	var highest string
	var highestNumbers []uint64
	var malformed []error
	for _, version := range versions {
		numbers, err := parseVersion(version)
		switch {
		case err != nil:
			malformed = append(malformed, err)
		case numbers[0] == 1 && slices.Compare(numbers, highestNumbers) > 0:
			highest, highestNumbers = strings.TrimSpace(version), numbers
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

func announcesZero(versions []string) bool {
	return slices.ContainsFunc(versions, func(version string) bool {
		numbers, err := parseVersion(version)
		return err == nil && numbers[0] == 0
	})
}

// parseVersion returns the numbers of a version, without zeros at the end but for the first number.
func parseVersion(version string) ([]uint64, error) {
	found := versionForm.FindStringSubmatch(version)
	if found == nil {
		return nil, fmt.Errorf("%q is not a version: two numbers at least, for example 1.9.0", version)
	}
	var numbers []uint64
	length := 1
	for text := range strings.SplitSeq(found[1], ".") {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a version: the number %s is too large", version, text)
		}
		if numbers = append(numbers, n); n > 0 {
			length = len(numbers)
		}
	}
	return numbers[:length], nil
}
