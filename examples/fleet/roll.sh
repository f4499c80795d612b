#!/bin/sh
# Rolls a new program of a launched plugin through a fleet, node by node, and stops at the first node where it does not become healthy. That
# node gets its old program back, and the nodes after it keep theirs.
#
#	roll.sh PLUGIN TYPE/NAME PROGRAM PATH [NODE...]
#
# PLUGIN is the name in the catalogue, PROGRAM the new program, and PATH where the nodes have it. Without nodes it takes all that are ready.
# SSH is how to run a command on a node (ssh), SOAK for how many seconds the new process has to be healthy (10).
set -eu
if [ $# -lt 4 ]; then
	echo "usage: roll.sh PLUGIN TYPE/NAME PROGRAM PATH [NODE...]" >&2
	exit 2
fi
plugin=$1 id=$2 program=$3 path=$4
shift 4
if [ $# -eq 0 ]; then
	nodes=$(patchbay fleet nodes --state ready -o name)
	# shellcheck disable=SC2086 # one word for each node
	set -- $nodes
fi

for node; do
	${SSH:-ssh} "$node" "cat >'$path.new' && chmod 755 '$path.new'" <"$program"
	if ! ${SSH:-ssh} "$node" sh -s "$plugin" "$id" "$path" "${SOAK:-10}" <<'END'; then
set -eu
plugin=$1 id=$2 path=$3 soak=$4
process() { patchbay status "$plugin" -o json | grep '"pid"'; }
healthy() { patchbay call "$id" grpc.health.v1.Health/Check | grep -q '"SERVING"'; }

ln -f "$path" "$path.old"
mv "$path.new" "$path"
# This waits until the new process is registered. If it does not come up, the old one keeps running.
if patchbay restart "$plugin"; then
	started=$(process)
	while [ "$soak" -gt 0 ] && healthy && [ "$(process)" = "$started" ]; do
		soak=$((soak - 1))
		sleep 1
	done
	if [ "$soak" -eq 0 ]; then
		exit 0
	fi
	mv "$path.old" "$path"
	patchbay restart "$plugin"
	exit 1
fi
mv "$path.old" "$path"
exit 1
END
		echo "$node: $plugin did not become healthy: stopped here" >&2
		exit 1
	fi
	echo "$node: $plugin has the new program"
done
