// Package browser tests the status page in a real browser, against a real daemon. It needs Chromium, which make test installs.
package browser
