// Package manager is the process of a contestant that finds plugins and registers them. The contestant tells its [Journal] what happens;
// the benchmark asks the [Manager]. It does not depend on any contestant, so that each can be a program of its own.
package manager
