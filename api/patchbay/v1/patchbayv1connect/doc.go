// Package patchbayv1connect holds the client and the server side of the control API of the Patchbay daemon, version 1, generated
// from control.proto.
//
// A handler made by it understands the Connect protocol, gRPC and gRPC-Web alike. How to reach the daemon on its control socket is
// not part of it: the transport is the http.Client that a caller gives.
package patchbayv1connect
