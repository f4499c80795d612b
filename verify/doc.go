// Package verify checks whether a plugin, of any type and in any language, behaves as hosts of the kubelet's plugin registration protocol
// expect. It plays the host itself, over the plugin's real socket, and needs no daemon, kubelet or cluster.
//
//	report, err := verify.Run(ctx, verify.Target{Command: []string{"./my-plugin", "{socket}"}}, verify.Options{})
//	if err == nil && !report.OK(false) { ... }
//
// It checks a table of rules ([Rules]), each with a stable identifier: REG (registration), CON (connections), SVC (optional services), CSI,
// DEV and KUB (device plugins), DRA, PRC (the process) and ENV (the environment).
// docs/reference/verify.md explains each of them. A [Target] that is only a socket keeps running undisturbed: the rules that stop or refuse
// a plugin need a command.
//
// It does not test what the plugin's service does with real volumes, devices or claims, and is not a load test.
package verify
