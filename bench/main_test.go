package bench

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// roleVariable is the environment variable that makes the test binary one of the processes of a benchmark.
const roleVariable = "PATCHBAY_BENCH_ROLE"

// rolePlugins is the role of the process in which all plugins run. The other roles are the names of contestants.
const rolePlugins = "plugins"

func TestMain(m *testing.M) {
	var err error
	switch role := os.Getenv(roleVariable); role {
	case "":
		// Each benchmark is one run, which nothing makes longer.
		flag.Parse()
		if err = flag.Set("test.benchtime", "1x"); err == nil {
			os.Exit(m.Run())
		}
	case rolePlugins:
		err = serve(newPlugins())
	default:
		err = runManager(role, os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
