// Package browser tests the status page in a real browser, against a real daemon. It needs Chromium, which "make test" installs as root;
// without it each test is skipped.
package browser
