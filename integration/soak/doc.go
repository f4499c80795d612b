// Soak runs a daemon with everything that it has for a time: plugins of several types that appear, go and replace each other, plugins that
// it launches and admits, stable sockets, the page and the metrics, a node of a fleet, subscribers of which one is stuck. It
// disturbs it with kills, stops, reloads, upgrades, full disks and the loss of etcd, and when it lets go of it, again and again, what the
// daemon shows has to be what is there. It ends with a table, and with 1 if something was not so:
//
//	cd integration && go run ./soak -for 20m
package main
