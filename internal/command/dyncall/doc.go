// Package dyncall calls gRPC methods whose types are known only at run time: it learns a server's services through reflection, or takes
// those of the kubelet's plugin protocols that it knows, turns JSON into requests and answers into JSON, and writes services as proto text.
//
// What a server says about itself is bounded and checked before it is used. This is for people who try plugins out; programs that know
// their plugins use generated clients.
package dyncall
