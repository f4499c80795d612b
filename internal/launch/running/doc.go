// Package running says which program a process runs, by its digest. It looks at what the kernel executes, and not at the path from which
// that came: the file there may have become another one since.
//
// A process that runs a script runs the interpreter, and the digest is that of the interpreter. A process can execute another program at
// any time, so the answer is of the moment of the question.
package running
