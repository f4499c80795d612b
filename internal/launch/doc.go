// Package launch has no code. The packages below it are what starts programs and keeps them, and serve the host of launched plugins:
// processes, their control groups, their output, their handshake, what they are by their digest, and whether they are admitted.
package launch
