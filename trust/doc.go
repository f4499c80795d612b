// Package trust decides whose plugin directories and sockets a host uses, and which users may register which plugin types. Discovery,
// registration and the diagnostic commands all ask a [Judge].
//
// Without a [Policy], only root and the host's user are trusted. The rule considers owners and modes as the system reports them, never
// content. On Windows, which has no such owners, everything is trusted.
package trust
