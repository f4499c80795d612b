// Package hostile has no code of its own, only tests: a catalogue of plugins that attack the daemon or its other plugins. Each runs as a
// process against the real daemon, beside plugins that behave well and are called all the while. What happens to each is written down in
// docs/reference/hostile-plugins.md, which is generated from the catalogue.
package hostile
