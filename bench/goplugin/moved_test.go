package main

import (
	_ "embed"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/theirs"
)

// Why tests are left out.
const (
	netRPC     = "its plugin speaks net/rpc, which is refused before there is a process"
	runnerFunc = "it has a RunnerFunc, which is refused before there is a process"
	noTLS      = "its plugin serves TLS, and its client has none: no call gets through, and Start says so"
	insides    = "it tests what the library does not export"
)

const goPlugin = "github.com/hashicorp/go-plugin"

//go:embed testdata/conn_test.go
var conn string

// TestMoved runs go-plugin's own tests of its client, and of its gRPC server through a client, against package pluginclient. The constructors are
// replaced: that of clients by pluginclient's, and that of a client and a server in one process by one that starts a plugin. What the tests
// ask of the library's insides is taken out: whether the process had to be killed.
func TestMoved(t *testing.T) {
	theirs.Suite{
		Module: goPlugin, From: ".",
		Files: []string{"client_test.go", "client_posix_test.go", "client_unix_test.go", "plugin_test.go", "rpc_client_test.go", "grpc_client_test.go", "server_test.go"},
		Also:  map[string]string{"conn_test.go": conn},
		Edits: []string{
			"import (", "import (\n\t. \"" + goPlugin + "\"\n\t\"github.com/patchbay-dev/patchbay/host/goplugin/pluginclient\"",
			"\t\"" + goPlugin + "/internal/cmdrunner\"\n", "",
			"\t*cmdrunner.CmdRunner\n}", "\trunner.Runner\n}", "m.CmdRunner.Stdout()", "m.Runner.Stdout()",
			" NewClient(", " pluginclient.NewClient(", "TestPluginGRPCConn(t", "newGRPCConn(t",
			"!c.killed()", "false", "c.killed()", "false",
			"c.runner.Kill(context.Background())", "kill(c)", "c.doneCtx.Done()", "ended()",
			"envMultiplexGRPC", `"PLUGIN_MULTIPLEX_GRPC"`,
			"go-plugin.test: panic", "tests: panic", // the name of the program
			// What is left out of tests: net/rpc, and a RunnerFunc. The gRPC that is required here has a method more than theirs.
			"\tt.Run(\"netrpc\", func(t *testing.T) { testClient_logger(t, \"netrpc\") })\n", "",
			"\"use RunnerFunc\": {true},", "",
			`{"Check", "Watch"}`, `{"Check", "List", "Watch"}`,
		},
		LeftOut: map[string]string{
			"TestClient":                       netRPC,
			"TestClient_SecureConfig":          netRPC,
			"TestClient_SkipHostEnv":           netRPC,
			"TestClient_Stderr":                netRPC,
			"TestClient_StderrJSON":            netRPC,
			"TestClient_Stdin":                 netRPC,
			"TestClient_TLS":                   netRPC,
			"TestClient_killStart":             netRPC,
			"TestClient_legacyClient":          netRPC,
			"TestClient_mtlsNetRPCClient":      netRPC,
			"TestClient_ping":                  netRPC,
			"TestClient_reattach":              netRPC,
			"TestClient_reattachNoProtocol":    netRPC,
			"TestClient_testCleanup":           netRPC,
			"TestClient_testInterface":         netRPC,
			"TestClient_testInterfaceReattach": netRPC,
			"TestClient_textLogLevel":          netRPC,
			"TestClient_logStderr":             insides,
			"TestClient_logStderrParseJSON":    insides,
			"TestProtocolSelection_no_server":  insides,
			"TestRmListener":                   insides,
			"TestRmListener_impl":              insides,
			"TestClient_legacyServer":          noTLS,
			"TestClient_versionedClient":       noTLS,
			"TestClient_noStdoutScannerRace":   runnerFunc,
			"TestSetGroup":                     runnerFunc,
		},
	}.Run(t)
}
