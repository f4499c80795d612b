#!/usr/bin/env bash
# From git clone to a daemon that launches a plugin, keeps it running, and calls it. Run it in an empty directory.
set -euo pipefail
trap 'kill $(jobs -p)' EXIT

git clone -q https://github.com/patchbay-dev/patchbay
go install -C patchbay ./cmd/patchbay
go install -C patchbay/examples ./hello
cat > patchbay.yaml << 'END'
apiVersion: patchbay.dev/v1alpha1
kind: Config
pluginDirs: [plugins]
state: state.db
handlers: {ExamplePlugin: accept}
plugins:
  - {name: hello, command: [hello]}
END
export PATCHBAY_CONTROL_SOCKET=$PWD/control.sock
patchbay run --config patchbay.yaml 2> daemon.log &
patchbay wait ExamplePlugin/hello
patchbay call ExamplePlugin/hello GetExampleInfo
