// Package plugin defines the terms that all packages share: the name of a plugin, its instances and their states, the status that lists
// show, events, conditions, reservations, and how a launched plugin is restarted, replaced and checked.
//
// It also defines a plugin host for its callers: the configuration, the interface, and the admission of packages. These follow the plugin
// package of the CIPD client. Package host implements them.
package plugin

import (
	"context"
	"time"
)

// Host launches plugins as subprocesses. Its methods are safe for concurrent use.
type Host interface {
	// Initialize gives the host its configuration. It comes once, before every other call.
	Initialize(cfg Config) error
	// Config returns what Initialize was given.
	Config() Config
	// NewAdmissionPlugin returns a handle to the admission plugin with this command line. The plugin is started by the first check.
	NewAdmissionPlugin(cmdLine []string) (AdmissionPlugin, error)
	// Close ends all plugins and releases what the host holds. It waits for them to end; those that have not when ctx ends are killed.
	Close(ctx context.Context)
}

// AdmissionPlugin asks an admission plugin whether packages may be deployed. Its methods are safe for concurrent use.
type AdmissionPlugin interface {
	// Executable is the path of the plugin's program.
	Executable() string
	// CheckAdmission asks whether the package with this pin may be deployed. Equal pins share one promise, also one that is resolved
	// already. It does not block.
	CheckAdmission(pin Pin) Promise
	// ClearCache forgets all resolved promises.
	ClearCache()
	// Close ends the plugin if it runs, killing it after 5 s or when ctx ends, and aborts the pending checks.
	Close(ctx context.Context)
}

// Promise is the result of a check, maybe in the future.
type Promise interface {
	// Wait blocks until the check is done and returns nil if the package is admitted, else why not. When ctx ends first it returns
	// the error of ctx. It may be called any number of times, concurrently too.
	Wait(ctx context.Context) error
}

// Pin names one instance of a package.
type Pin struct {
	PackageName string
	// InstanceID is the unpadded URL-safe base64 of a digest followed by a byte with the number of its hash algorithm: 1 for SHA-1,
	// 2 for SHA-256.
	InstanceID string
}

// String returns the pin as package:instance.
func (p Pin) String() string { return p.PackageName + ":" + p.InstanceID }

// Config is what a host tells its plugins about its surroundings.
type Config struct {
	// ServiceURL identifies the package service that the host works with.
	ServiceURL string
	// Repository has the metadata of package instances. Nil: there is none.
	Repository Repository
}

// Repository lists metadata of package instances. It must be safe for concurrent use.
type Repository interface {
	// ListMetadata returns one page of the metadata of a package instance, newest first. With keys it returns only theirs.
	// It may block until ctx ends.
	ListMetadata(ctx context.Context, pin Pin, keys []string, page Page) (entries []Metadata, nextToken string, err error)
}

// Page selects a part of a listing.
type Page struct {
	// Size is the most entries that are wanted; zero leaves it to the repository, which may always return fewer.
	Size int
	// Token is the next token of the page before; empty for the first.
	Token string
}

// Metadata is one entry that is attached to a package instance.
type Metadata struct {
	Key   string
	Value []byte
	// ContentType is the media type of the value; it may be empty.
	ContentType string
	// Fingerprint identifies the entry by its key and value.
	Fingerprint string
	AttachedBy  string
	AttachedAt  time.Time
}
