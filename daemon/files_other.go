//go:build !unix

package daemon

func openAnother() error { return nil }
