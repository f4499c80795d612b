//go:build !linux

package sock

func share(*Listener) error { return nil }

const canTellHolder = false
