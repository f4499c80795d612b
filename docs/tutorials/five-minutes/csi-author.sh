#!/usr/bin/env bash
# From git clone to a CSI driver of your own that is called by its node service. Run it in an empty directory.
set -euo pipefail
trap 'kill $(jobs -p)' EXIT

git clone -q https://github.com/patchbay-dev/patchbay
go install -C patchbay ./cmd/patchbay
patchbay init plugin disk.example.com --type CSIPlugin --replace patchbay
make -C disk build
export PATCHBAY_CONTROL_SOCKET=$PWD/control.sock
mkdir plugins
patchbay run --plugin-dir plugins --state state.db --handler CSIPlugin=csi 2> daemon.log &
disk/bin/disk plugins/disk.sock &
patchbay wait csi-node/disk.example.com
patchbay call csi-node/disk.example.com NodeGetInfo
