// Package bench measures Patchbay beside other systems that do the same, its peers, and beside the floors of its work: the least that the
// same work costs with well-known libraries and nothing around them. It has benchmarks only; the README of this folder says how to run
// them and how to read them.
//
// A benchmark here is a whole run. Its contestants are processes of their own, so are the plugins, and they take turns, so that whatever
// else the machine does meets all of them. What a single package costs is measured by the benchmarks of that package.
package bench
