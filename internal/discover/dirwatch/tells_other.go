//go:build !linux

package dirwatch

func tells(string) bool { return false }
