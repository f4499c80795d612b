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
	// Initialize sets the configuration. It must be called once, before the other methods.
	Initialize(cfg Config) error
	// Config returns the configuration that was passed to Initialize.
	Config() Config
	// NewAdmissionPlugin returns a handle to the admission plugin with this command line. The first check starts the plugin.
	NewAdmissionPlugin(cmdLine []string) (AdmissionPlugin, error)
	// Close stops all plugins and releases the resources of the host. It waits for the plugins to exit, and kills the remaining ones when
	// ctx ends.
	Close(ctx context.Context)
}

// AdmissionPlugin asks an admission plugin whether packages may be deployed. Its methods are safe for concurrent use.
type AdmissionPlugin interface {
	// Executable returns the path of the plugin's program.
	Executable() string
	// CheckAdmission asks whether the package with this pin may be deployed. Equal pins share one promise, even if it is already resolved.
	// It does not block.
	CheckAdmission(pin Pin) Promise
	// ClearCache deletes all resolved promises.
	ClearCache()
	// Close stops the plugin, if it is running, and aborts the pending checks. A plugin that has not exited after 5 s, or when ctx ends, is
	// killed.
	Close(ctx context.Context)
}

// Promise is the result of a check that may be in progress.
type Promise interface {
	// Wait blocks until the check is done. It returns nil if the package is admitted, and otherwise the reason as an error. If ctx ends
	// first, it returns the error of ctx. It may be called any number of times, also concurrently.
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

// Config describes the environment of a host to its plugins.
type Config struct {
	// ServiceURL identifies the package service that the host works with.
	ServiceURL string
	// Repository lists the metadata of package instances; nil if there is none.
	Repository Repository
}

// Repository lists metadata of package instances. It must be safe for concurrent use.
type Repository interface {
	// ListMetadata returns one page of the metadata of a package instance, newest first. If keys is not empty, it returns only entries with
	// these keys. It may block until ctx ends.
	ListMetadata(ctx context.Context, pin Pin, keys []string, page Page) (entries []Metadata, nextToken string, err error)
}

// Page selects a part of a listing.
type Page struct {
	// Size is the maximum number of entries; if it is zero, the repository chooses it. The repository may return fewer.
	Size int
	// Token is the next token of the previous page; empty for the first.
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
