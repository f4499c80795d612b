// Package cipdv1 is generated from cipd.proto: the messages between a host and an admission plugin of the CIPD system. It has no services;
// those are in internal/launch/cipd.
package cipdv1
