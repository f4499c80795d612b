package cli

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/daemon"
)

// versionInfo is what "patchbay version" prints.
type versionInfo struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"`
	GoVersion string `json:"goVersion"`
	OS        string `json:"os"`
	Arch      string `json:"arch"`
}

func newVersionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program.",
		Long:  "Print the version of this program, the commit and the Go release it was built from, and the system it was built for.",
		Example: `  patchbay version
  patchbay version -o json`,
	}
	output := addOutput(cmd, "text")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		build := daemon.ThisBuild()
		info := versionInfo{build.Version, build.Commit, runtime.Version(), runtime.GOOS, runtime.GOARCH}
		return output.print(cmd, info, func(w io.Writer) error {
			return writeLines(w, []string{
				fmt.Sprintf("patchbay %s (commit %s, %s, %s/%s)", info.Version, cell(info.Commit), info.GoVersion, info.OS, info.Arch),
			})
		})
	}
	return cmd
}
