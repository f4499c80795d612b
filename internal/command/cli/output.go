package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// choice is a flag that takes one of a few words. It implements pflag.Value.
type choice struct {
	value   string
	allowed []string
}

func (c *choice) String() string { return c.value }

// Set implements pflag.Value.
func (c *choice) Set(value string) error {
	if !slices.Contains(c.allowed, value) {
		return fmt.Errorf("must be one of %s", strings.Join(c.allowed, ", "))
	}
	c.value = value
	return nil
}

// Type implements pflag.Value; the help shows it in the place of the value.
func (c *choice) Type() string { return strings.Join(c.allowed, "|") }

// addChoice adds a flag whose first allowed word is the default. It also completes the words.
func addChoice(cmd *cobra.Command, name, shorthand, usage string, allowed ...string) *choice {
	c := &choice{value: allowed[0], allowed: allowed}
	cmd.Flags().VarP(c, name, shorthand, usage)
	complete := cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
		panic(err) // the flag was added two lines above
	}
	return c
}

// writeJSON writes a value as indented JSON.
func writeJSON(w io.Writer, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return write(w, append(escapeJSON(text), '\n'))
}

// writeJSONLine writes a value as one line of JSON.
func writeJSONLine(w io.Writer, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return write(w, append(escapeJSON(text), '\n'))
}

// writeYAML writes a value as YAML with the keys of its JSON form.
func writeYAML(w io.Writer, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	// The escapes matter here as well: YAML is refused for unprintable characters that are not escaped.
	var tree any
	if err := yaml.Unmarshal(escapeJSON(text), &tree); err != nil {
		return err
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(quoteTabs(tree)); err != nil {
		return err
	}
	return write(w, out.Bytes())
}

// quoteTabs has strings with tabs written between quotes, with escapes: where they have lines of their own, tabs are taken for indentation.
func quoteTabs(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, in := range v {
			v[key] = quoteTabs(in)
		}
	case []any:
		for i, in := range v {
			v[i] = quoteTabs(in)
		}
	case string:
		if strings.Contains(v, "\t") {
			return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: v}
		}
	}
	return value
}

func write(w io.Writer, text []byte) error {
	_, err := io.Copy(w, bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("cannot write the output: %w", err)
	}
	return nil
}
