package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/cli"
)

var update = flag.Bool("update", false, "write docs/reference/commands.md")

const commandsPage = "../../../../docs/reference/commands.md"

// TestCommandsPage: docs/reference/commands.md is what the commands say of themselves.
func TestCommandsPage(t *testing.T) {
	var page strings.Builder
	page.WriteString("<!-- Generated from the commands: go test ./cmd/patchbay/internal/mangen -run TestCommandsPage -update -->\n\n# Commands\n\n" +
		"Every command, as `patchbay help COMMAND` and the man pages show it. Exit codes: 0, it was done; 1, it failed, or the answer is no; " +
		"2, the command\nline is wrong.\n")
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if !cmd.Hidden && cmd.Name() != "help" && cmd.Name() != "completion" {
			describe(&page, cmd)
			for _, below := range cmd.Commands() {
				visit(below)
			}
		}
	}
	visit(cli.Manual())
	if *update {
		if err := os.WriteFile(commandsPage, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(commandsPage)
	if err != nil || string(got) != page.String() {
		t.Errorf("docs/reference/commands.md is not current (%v): run this test with -update", err)
	}
}

func describe(page *strings.Builder, cmd *cobra.Command) {
	text := cmd.Long
	if text == "" {
		text = cmd.Short
	}
	fmt.Fprintf(page, "\n## %s\n\n%s\n\n```text\n%s\n```\n", cmd.CommandPath(), escaped(text), cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(page, "\n```text\n%s\n```\n", strings.TrimRight(cmd.Example, "\n "))
	}
	if flags := cmd.NonInheritedFlags().FlagUsages(); strings.TrimSpace(flags) != "" {
		fmt.Fprintf(page, "\n```text\n%s\n```\n", strings.TrimRight(flags, "\n "))
	}
}

// escaped keeps what stands for a value from being taken for HTML.
func escaped(text string) string {
	return strings.NewReplacer("<", "&lt;", "|", "\\|").Replace(strings.TrimSpace(text))
}
