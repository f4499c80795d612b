package cache_test

import "sync/atomic"

// uuid makes the identities that the kubelet's plugins have. Here they are numbers.
var uuid identities

type identities struct{ last atomic.Uint64 }

func (i *identities) NewUUID() uint64 { return i.last.Add(1) }
