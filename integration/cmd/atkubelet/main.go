//go:build linux

// Atkubelet runs a program that sees a directory as that of the kubelet's device plugins, /var/lib/kubelet/device-plugins: it puts it there
// in a mount namespace of its own and becomes the program. It needs to be root. What is in /var/lib is hidden from the program.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: atkubelet DIR PROGRAM [ARG...]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "atkubelet:", err)
		os.Exit(1)
	}
}

func run(dir string, args []string) error {
	program, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the namespace is that of the thread, and then of the program
	return errors.Join(
		os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNS)),
		os.NewSyscallError("mount private", unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "")),
		os.NewSyscallError("mount tmpfs", unix.Mount("tmpfs", "/var/lib", "tmpfs", 0, "")),
		os.MkdirAll(pluginapi.DevicePluginPath, 0o750),
		os.NewSyscallError("bind mount", unix.Mount(dir, pluginapi.DevicePluginPath, "", unix.MS_BIND, "")),
		os.NewSyscallError("exec", unix.Exec(program, args, os.Environ())),
	)
}
