// Package patchbayv1 holds the messages of the control API of the Patchbay daemon, version 1, generated from control.proto.
//
// It is for clients in Go that want the API itself. The client and the service interface are in patchbayv1connect. The package
// holds no logic; what the fields mean is said in control.proto and repeated on the generated types.
package patchbayv1
