// Package launcher keeps launched plugins running: it starts those that it is told to, starts them again when they end, as their policy
// says, and replaces one by another without downtime. How a process is started and ended is the business of package host; how a
// plugin that serves is found and registered is that of the one pipeline, for which a launched plugin is a socket like any other.
package launcher
