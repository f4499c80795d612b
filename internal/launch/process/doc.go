// Package process starts programs for a host and makes sure that none of them outlives it: not when the program ends and leaves children
// behind, not when the host is killed with SIGKILL, and not when a descendant left the process group (where a cgroup can be had).
//
// A [Group] belongs to one host. Each [Process] of it is a process group of its own and, where one can be had, a cgroup of its own. The end
// of a process ends everything that it started. A process may also be told to survive its host ([Spec].Survive); a later host adopts it
// ([Group.Adopt]).
//
// It knows nothing of plugins, of what is on standard input and output, or of when to start a process again.
//
// All of it works on Linux. On macOS there is the process group only, and nothing ends processes when the host is killed except that their
// standard input ends; on Windows there is not even the group. What is missing returns an error that wraps [errors.ErrUnsupported].
package process
