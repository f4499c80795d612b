package fleet_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/patchbay-dev/patchbay/plugin"
)

// lockCallKind is what a caller does with a lock.
type lockCallKind string

const (
	lockAsk     lockCallKind = "ask"     // a node whether it holds the lock: its token, or 0
	lockCall    lockCallKind = "call"    // a plugin through a node: the token that the plugin sees
	lockAcquire lockCallKind = "acquire" // has a node stand for the lock until it holds it: its token
	lockRelease lockCallKind = "release" // has a node give the lock up, until it has
	lockObserve lockCallKind = "observe" // asks etcd, of which node nothing is known: the node, and perhaps a token
)

// lockInput is a call, lockOutput its answer.
type (
	lockInput struct {
		kind lockCallKind
		lock plugin.Name
		node string
	}
	lockOutput struct {
		node  string
		token int64 // 0 for none, or if it is not known
	}
)

// lockState is a lock as callers can know it: who held it last, between which two numbers that token is, and whether it was given up since.
type lockState struct {
	node      string
	low, high int64
	released  bool
}

// lockModel is the lock in one order of all calls: one node at a time holds it, with one token; each holder's is greater than those before;
// and who has given the lock up, or lost it, does not have it again with the same token.
var lockModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byLock := map[plugin.Name][]porcupine.Operation{}
		for _, op := range history {
			lock := op.Input.(lockInput).lock
			byLock[lock] = append(byLock[lock], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byLock {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return lockState{released: true} },
	Step: func(state, input, output any) (bool, any) {
		return state.(lockState).step(input.(lockInput), output.(lockOutput))
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(lockInput), output.(lockOutput)
		return fmt.Sprintf("%s %s %s: %s %d", in.kind, in.lock, in.node, out.node, out.token)
	},
}

func (s lockState) step(in lockInput, out lockOutput) (bool, lockState) {
	switch {
	case in.kind == lockObserve && (out.node == "" || out.node == s.node):
		// Nobody, or the last one, who may have given up without etcd's knowing yet.
		return out.token == 0 || out.node == "" || out.token >= s.low, s
	case in.kind == lockObserve:
		next := lockState{node: out.node, low: s.low + 1, high: math.MaxInt64}
		if out.token > 0 {
			next.high = out.token
		}
		return next.low <= next.high, next
	case out.token == 0: // the node does not hold the lock
		if in.node == s.node {
			s.released = true
		}
		return true, s
	case in.node == s.node && !s.released && s.low <= out.token && out.token <= s.high:
		return true, lockState{node: in.node, low: out.token, high: out.token}
	}
	return out.token > s.low, lockState{node: in.node, low: out.token, high: out.token}
}

// TestLockModel: the model takes what a lock may do and nothing else.
func TestLockModel(t *testing.T) {
	t.Parallel()
	type call struct {
		kind  lockCallKind
		node  string
		seen  string
		token int64
	}
	for name, test := range map[string]struct {
		calls []call
		right bool
	}{
		"one after the other": {[]call{{lockAcquire, "a", "", 5}, {lockAsk, "a", "", 5}, {lockRelease, "a", "", 0}, {lockAcquire, "b", "", 6}}, true},
		"two holders":         {[]call{{lockAsk, "a", "", 5}, {lockAsk, "b", "", 6}, {lockAsk, "a", "", 5}}, false},
		"one token":           {[]call{{lockAsk, "a", "", 5}, {lockRelease, "a", "", 0}, {lockAsk, "b", "", 5}}, false},
		"a smaller token":     {[]call{{lockAsk, "a", "", 5}, {lockAsk, "a", "", 0}, {lockAsk, "b", "", 4}}, false},
		"back again":          {[]call{{lockAsk, "a", "", 5}, {lockAsk, "a", "", 0}, {lockAsk, "a", "", 5}}, false},
		"a call after it":     {[]call{{lockAsk, "a", "", 5}, {lockRelease, "a", "", 0}, {lockCall, "a", "", 5}}, false},
		"seen in etcd":        {[]call{{lockObserve, "", "a", 7}, {lockAsk, "a", "", 5}, {lockObserve, "", "a", 7}}, true},
		"seen too early":      {[]call{{lockObserve, "", "a", 7}, {lockAsk, "a", "", 8}, {lockAsk, "b", "", 8}}, false},
		"the wrong one seen":  {[]call{{lockAsk, "a", "", 5}, {lockObserve, "", "b", 7}, {lockAsk, "a", "", 5}}, false},
		"an old one seen":     {[]call{{lockAsk, "a", "", 5}, {lockAsk, "b", "", 9}, {lockObserve, "", "a", 6}, {lockAsk, "b", "", 9}}, false},
	} {
		var history []porcupine.Operation
		for i, c := range test.calls {
			history = append(history, porcupine.Operation{
				Input: lockInput{kind: c.kind, node: c.node}, Output: lockOutput{c.seen, c.token}, Call: int64(2 * i), Return: int64(2*i + 1),
			})
		}
		if got := porcupine.CheckOperations(lockModel, history); got != test.right {
			t.Errorf("%s: %v, want %v", name, got, test.right)
		}
	}
}
