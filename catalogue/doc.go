// Package catalogue says which plugins a host may launch, and how: the entries of the section "plugins" of the configuration, checked and
// frozen. It also compares two catalogues, so that whoever runs the plugins of one can pass to the next without touching what stayed the
// same.
//
// It launches nothing and reads no files: whether a command exists, has the digest that is expected and may be run as a user is for the
// host to say.
package catalogue
