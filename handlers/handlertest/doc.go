// Package handlertest is the conformance suite for implementations of cache.PluginHandler: whoever writes one runs Test on it.
//
// It walks a handler through what the pipeline may ask of it, with plugins that behave well, fail, hang, die and are replaced, and checks
// that
//
//   - every call may be repeated, and comes for plugins that the handler does not know;
//   - a handler that is made anew over the same state, after a crash at any moment, takes its plugins again;
//   - no lock is held over a call: a plugin that hangs holds up its own name only;
//   - a failed RegisterPlugin leaves nothing behind: no connection, no goroutine, no instance, without DeRegisterPlugin;
//   - InstanceGone lets go of the connections to that endpoint and of no others;
//   - RegisterPluginContext ends with its context, and what it left running does not;
//   - versions and names that the handler does not support are refused;
//   - different names do not get into each other's way, under the race detector too;
//   - after all plugins were deregistered, and after Close, nothing is left.
//
// It cannot check what the handler does with a plugin; that is for the handler's own tests.
package handlertest
