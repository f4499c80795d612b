// Package discover has no code. The packages below it are what finds plugins and speaks to them first, and serve the pipeline: directory
// trees as facts, the registration protocol's client, the pipeline itself, and what the registry keeps.
package discover
