package config

import (
	_ "embed" // for the schema
	"slices"
)

// schema is generated from the types by the tests; see generate_test.go.
//
//go:embed patchbay.schema.json
var schema []byte

// Schema returns the JSON schema (draft 2020-12) of the configuration file and of each drop-in.
func Schema() []byte { return slices.Clone(schema) }
