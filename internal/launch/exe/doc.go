// Package exe makes what was checked what runs: it copies a program into memory that nobody can change any more, and says which digest the
// copy has. The copy is what is executed then, whatever happens to the file.
//
// It starts nothing and trusts nobody: whether a digest is the right one is up to the caller.
package exe
