// Package docs runs what README and the pages of docs show: every block of code, from an empty directory, with the module and the program
// as their users get them. It also runs the first five minutes of each kind of user.
package docs
