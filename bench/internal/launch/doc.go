// Package launch is the process of a contestant that launches plugins, and what is said to the program that prints. It does not depend on
// any contestant, so that each can be a program of its own.
package launch
