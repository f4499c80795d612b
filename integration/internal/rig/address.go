package rig

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"syscall"
)

// FreeAddress returns an address of this host on which nobody listens, for a server that keeps it over restarts. The port is none that a
// system gives to connections: a client that dials a server that is down would otherwise take the server's port for itself now and then.
// On Linux, where all of 127.0.0.0/8 is this host, nobody else is at the same IP address either.
func FreeAddress() (string, error) {
	ip := net.IPv4(127, 0, 0, 1)
	if runtime.GOOS == "linux" {
		ip = net.IPv4(127, byte(1+rand.IntN(250)), byte(rand.IntN(256)), byte(1+rand.IntN(250)))
	}
	for {
		l, err := net.Listen("tcp", net.JoinHostPort(ip.String(), fmt.Sprint(10_000+rand.IntN(20_000)))) //nolint:noctx // it is at once
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return "", err
		}
		return l.Addr().String(), l.Close()
	}
}
