package plugin

import (
	"context"
	"time"
)

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
