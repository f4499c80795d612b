// Package trust holds the rule by which a host decides whose plugin directories and sockets it uses, and which users may register plugins
// of which types. Everybody who has to decide that asks a [Judge]: discovery, registration, and the commands that look at a machine.
//
// Without a [Policy] root and the user of the host are trusted, and nobody else. The rule looks at the owners and modes that the system
// states, and at no content. Where there are no such owners, on Windows, everything is trusted.
package trust
