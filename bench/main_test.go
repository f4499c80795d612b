package bench

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/bench/internal/manager"
	"github.com/patchbay-dev/patchbay/bench/internal/proc"
	"github.com/patchbay-dev/patchbay/bench/internal/registry"
)

// roleVariable is the environment variable that makes the test binary one of the processes of a benchmark. Its value is one of the roles
// below, or the name of a contestant in managers, registries or hosts.
const roleVariable = "PATCHBAY_BENCH_ROLE"

const (
	// rolePlugins is the role of the process in which all plugins run.
	rolePlugins = "plugins"
	// roleAdmissions is that of the host of an admission plugin.
	roleAdmissions = "admissions"
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		return
	}
	// Each benchmark is one run, which nothing makes longer.
	flag.Parse()
	if err := flag.Set("test.benchtime", "1x"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := removePrograms(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// play makes this process one of those of a benchmark until standard input ends. The argument of a contestant is its directory.
func play(role string) error {
	if role == rolePlugins {
		return proc.Serve(newPlugins())
	}
	if role == roleAdmissions {
		return serveAdmissions(os.Args[1])
	}
	if run, ok := managers[role]; ok {
		return manager.Serve(run, os.Args[1])
	}
	if open, ok := registries[role]; ok {
		return registry.Serve(open, os.Args[1])
	}
	if open, ok := hosts[role]; ok {
		return launch.Serve(open, os.Args[1])
	}
	if run, ok := proxied[role]; ok {
		return playProxied(run, os.Args[1])
	}
	return fmt.Errorf("there is no contestant %q", role)
}
