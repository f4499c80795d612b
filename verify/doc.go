// Package verify checks whether a plugin behaves as hosts of the kubelet's plugin registration protocol expect it: any plugin, in any
// language, of any type. It plays the host itself, over the plugin's real socket, and needs no daemon, kubelet or cluster.
//
//	report, err := verify.Run(ctx, verify.Target{Command: []string{"./my-plugin", "{socket}"}}, verify.Options{})
//	if err == nil && !report.OK(false) { ... }
//
// What is checked is a table of rules ([Rules]), each with a stable identifier: REG (registration), CON (connections), SVC (services that
// every plugin may offer), CSI, DEV and KUB (device plugins), DRA, PRC (the process) and ENV (where it runs).
// docs/reference/verify.md explains each of them. A [Target] that is only a socket is left running and undisturbed: the rules that end a
// plugin or refuse it need a command.
//
// It changes nothing in a plugin, does not test what its service does with real volumes, devices or claims, and is no load test.
package verify
