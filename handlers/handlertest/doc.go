// Package handlertest is the conformance suite for implementations of cache.PluginHandler: if you write one, run [Test] on it.
//
// It calls a handler in every way the pipeline may, with plugins that behave, fail, hang, die and get replaced, and checks that
//
//   - every call may be repeated, and comes for plugins that the handler does not know;
//   - a new handler over the same state, after a crash at any moment, accepts its plugins again;
//   - no lock is held across a call: a hung plugin only delays its own name;
//   - a failed RegisterPlugin leaves nothing behind: no connection, no goroutine, no instance, without DeRegisterPlugin;
//   - InstanceGone closes the connections to that endpoint and no others;
//   - RegisterPluginContext ends with its context, and what it left running does not;
//   - versions and names that the handler does not support are refused;
//   - different names do not interfere with each other, also under the race detector;
//   - after all plugins were deregistered, and after Close, nothing is left.
//
// It cannot check what the handler does with a plugin; that is for the handler's own tests.
package handlertest
