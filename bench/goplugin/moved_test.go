package main

import (
	_ "embed"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/theirs"
)

// Why tests are left out.
var (
	netRPC = theirs.Reason{
		Why: "its plugin speaks net/rpc, which is refused before there is a process", Printed: "plugins that speak net/rpc are not offered",
	}
	runnerFunc = theirs.Reason{Why: "it has a RunnerFunc, which is refused before there is a process", Printed: "RunnerFunc is not offered"}
	attributes = theirs.Reason{
		Why: "it sets Cmd.SysProcAttr, which is refused before there is a process", Printed: "Cmd.SysProcAttr is not offered",
	}
	nowhere = theirs.Reason{
		Why:     "its plugin serves nowhere, for which Start fails; pluginclient has tests of the same with plugins that serve",
		Printed: "does not answer there: rpc error: code = Unavailable desc = connection error: desc = \"transport: error while dialing",
	}
	stdin = theirs.Reason{
		Why: "its plugin, which serves nowhere, is to read the host's standard input, which is not offered", Printed: nowhere.Printed,
	}
	noTLS = theirs.Reason{
		Why: "its plugin serves TLS and its client has none, for which Start fails: no call would succeed", Printed: "does not answer there: rpc error",
	}
)

const goPlugin = "github.com/hashicorp/go-plugin"

// What is around the plugins in configurations: of servers that stay with net/rpc, of a client that does not allow gRPC, and of the plugins.
const (
	serveNetRPC  = "go Serve(&ServeConfig{\n\t\tHandshakeConfig: testHandshake,\n\t\tPlugins:         testPluginMap,\n"
	notAllowed   = "Plugins:         testPluginMap,\n\t})\n\tdefer c.Kill()\n\n\tif _, err := c.Start(); err == nil {"
	helperNetRPC = "Handshake,\n\t\t\tPlugins:         testPluginMap,\n"
	helperGRPC   = "Handshake, Plugins: testGRPCPluginMap, GRPCServer: DefaultGRPCServer,\n"
)

// noProtocol is the beginning of a test of net/rpc up to its configuration.
const noProtocol = "reattachNoProtocol(t *testing.T) {\n\tprocess := helperProcess(\"test-interface\")\n\tc := NewClient(&ClientConfig{\n" +
	"\t\tCmd:             process,\n\t\tHandshakeConfig: testHandshake,\n\t\tPlugins: "

//go:embed testdata/conn_test.go
var conn string

// TestMoved runs go-plugin's own tests of its client, and of its gRPC server through a client, against package pluginclient. The constructors are
// replaced: that of clients by pluginclient's, and that of a client and a server in one process by one that starts a plugin. What the tests
// ask of the library's insides is taken out: whether the process had to be killed.
func TestMoved(t *testing.T) {
	theirs.Suite{
		Module: goPlugin, From: ".",
		Files: []string{ // not client_logger_test.go, which has a benchmark only
			"client_test.go", "client_posix_test.go", "client_unix_test.go", "plugin_test.go", "rpc_client_test.go", "grpc_client_test.go",
			"server_test.go", "server_unix_test.go", "error_test.go", "internal/cmdrunner/*_test.go",
		},
		Also: map[string]string{"conn_test.go": conn},
		Edits: []string{
			"import (", "import (\n\t. \"" + goPlugin + "\"\n\t\"github.com/patchbay-dev/patchbay/host/goplugin/pluginclient\"",
			"\t\"" + goPlugin + "/internal/cmdrunner\"\n", "",
			"\t*cmdrunner.CmdRunner\n}", "\trunner.Runner\n}", "m.CmdRunner.Stdout()", "m.Runner.Stdout()",
			"package cmdrunner\n", "package plugin\n", noProtocol, strings.Replace(noProtocol, " New", " pluginclient.New", 1),
			" NewClient(", " pluginclient.NewClient(", "TestPluginGRPCConn(t", "newGRPCConn(t",
			"!c.killed()", "false", "c.killed()", "false",
			"c.runner.Kill(context.Background())", "kill(c)", "c.doneCtx.Done()", "ended()",
			"doneCtx context.Context, b *GRPCBroker, c *grpc.ClientConn) (interface{}, error) {",
			"doneCtx context.Context, b *GRPCBroker, c *grpc.ClientConn) (interface{}, error) {\n\treceived = doneCtx",
			"envMultiplexGRPC", `"PLUGIN_MULTIPLEX_GRPC"`,
			// For slow machines.
			"time.After(time.Second * 2)", "time.After(time.Minute)", "2000 * time.Millisecond", "time.Minute",
			"time.Sleep(100 * time.Millisecond)", "time.Sleep(2 * time.Second)",
			"go-plugin.test: panic", "tests: panic", // the name of the program
			// Where it does not matter, plugins speak gRPC and not net/rpc.
			serveNetRPC, serveNetRPC, notAllowed, notAllowed, helperNetRPC, helperGRPC, "\ttestPluginMap := map", "\t_ = map",
			"Plugins:         testPluginMap,\n", "Plugins: testGRPCPluginMap, AllowedProtocols: []Protocol{ProtocolGRPC},\n",
			"HandshakeConfig: testHandshake})", "HandshakeConfig: testHandshake, AllowedProtocols: []Protocol{ProtocolGRPC}})",
			"tcp|:1234\\n", "tcp|:1234|grpc\\n",
			// What is left out of tests: net/rpc, and a RunnerFunc. The gRPC that is required here has a method more than theirs.
			"\tt.Run(\"netrpc\", func(t *testing.T) { testClient_logger(t, \"netrpc\") })\n", "",
			"\"use RunnerFunc\": {true},", "",
			`{"Check", "Watch"}`, `{"Check", "List", "Watch"}`,
		},
		LeftOut: map[string]theirs.Reason{
			"TestClient":                       nowhere,
			"TestClient_SkipHostEnv":           nowhere,
			"TestClient_Stderr":                nowhere,
			"TestClient_StderrJSON":            nowhere,
			"TestClient_Stdin":                 stdin,
			"TestClient_TLS":                   noTLS,
			"TestClient_legacyClient":          netRPC,
			"TestClient_mtlsNetRPCClient":      netRPC,
			"TestClient_reattachNoProtocol":    netRPC,
			"TestClient_testInterfaceReattach": attributes,
			"TestClient_textLogLevel":          nowhere,
			"TestClient_logStderr":             theirs.Unexported,
			"TestClient_logStderrParseJSON":    theirs.Unexported,
			"TestProtocolSelection_no_server":  theirs.Unexported,
			"TestRmListener":                   theirs.Unexported,
			"TestRmListener_impl":              theirs.Unexported,
			"TestClient_legacyServer":          noTLS,
			"TestClient_versionedClient":       noTLS,
			"TestClient_noStdoutScannerRace":   runnerFunc,
			"TestSetGroup":                     runnerFunc,
			"TestAdditionalNotesAboutCommand":  theirs.Unexported,
			"TestUnixSocketGroupPermissions":   theirs.Unexported,
		},
		Apart: []string{
			"TestBasicError_ImplementsError", "TestBasicError_MatchesMessage", "TestNewBasicError_nil", "TestClient_App", "TestClient_syncStreams",
			"TestGRPCConn_BidirectionalPing", "TestServer_RPC", "TestServer_testStdLogger", "TestUnixSocketDir", "TestHelperProcess",
		},
	}.Run(t)
}
