// Package v1beta1 is the v1beta1 service of the example plugin, generated from api.proto.
//
// It stands for the service that a real plugin offers to its consumer beside the registration service, and lets tests and
// demonstrations call a plugin that they dispensed. It is no interface that a real plugin has to offer.
package v1beta1
