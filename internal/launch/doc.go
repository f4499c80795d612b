// Package launch has no code. The packages below it are what starts programs and keeps them, and serve the host of launched plugins:
// processes, their control groups, their output, their handshake, and what they are by their digest.
package launch
