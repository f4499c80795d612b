package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
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
	completeFlag(cmd, name, cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// addWords adds a flag that takes a list of known words. The caller must call check after the flags are parsed.
func addWords(cmd *cobra.Command, name, usage string, known []string) (words *[]string, check func() error) {
	words = cmd.Flags().StringSlice(name, nil, usage)
	completeFlag(cmd, name, cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp))
	return words, func() error {
		for _, word := range *words {
			if !slices.Contains(known, word) {
				return wrongUsage(cmd, "--%s %q is not known: use any of %s", name, word, strings.Join(known, ", "))
			}
		}
		return nil
	}
}

// completeFlag sets the completion of an existing flag.
func completeFlag(cmd *cobra.Command, name string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
		panic(err)
	}
}

// addOutput adds the flag --output with the formats first, json, yaml and more.
func addOutput(cmd *cobra.Command, first string, more ...string) *choice {
	return addChoice(cmd, "output", "o", "output format", append([]string{first, "json", "yaml"}, more...)...)
}

// print writes a value as JSON or YAML or, for other formats, calls text.
func (c *choice) print(cmd *cobra.Command, value any, text func(io.Writer) error) error {
	w := cmd.OutOrStdout()
	switch c.value {
	case "json":
		return writeJSON(w, value)
	case "yaml":
		return writeYAML(w, value)
	}
	return text(w)
}

// printList is print for a list that also has the format name.
func printList[T any](cmd *cobra.Command, output *choice, list []T, names func([]T) []string, text func(io.Writer) error) error {
	return output.print(cmd, list, func(w io.Writer) error {
		if output.value == "name" {
			return writeLines(w, names(list))
		}
		return text(w)
	})
}

// addLines adds the flag --output for a stream of values.
func addLines(cmd *cobra.Command) *choice {
	return addChoice(cmd, "output", "o", "output format: one line of text, or one JSON object a line", "text", "json")
}

// printLines writes each value of a sequence as one line. If endless is set, an interrupt is not an error.
func printLines[T any](cmd *cobra.Command, output *choice, all iter.Seq2[T, error], endless bool, text func(io.Writer, T) error) error {
	for one, err := range all {
		switch {
		case endless && errors.Is(err, context.Canceled):
			return nil
		case err != nil:
			return err
		case output.value == "json":
			err = writeJSONLine(cmd.OutOrStdout(), one)
		default:
			err = text(cmd.OutOrStdout(), one)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addPastAndNew adds the flags of commands that show past records and can follow new ones. The function that it returns returns their
// values.
func addPastAndNew(cmd *cobra.Command, coming, what string) func() (follow bool, tail *uint32) {
	following := cmd.Flags().BoolP("follow", "f", false, "continue with "+coming)
	count := cmd.Flags().Uint32("tail", 0, "number of past "+what+" to show (default all that are kept)")
	return func() (bool, *uint32) {
		if cmd.Flags().Changed("tail") {
			return *following, count
		}
		return *following, nil
	}
}

func writeJSON(w io.Writer, value any) error {
	text, err := json.MarshalIndent(jsonOf(value), "", "  ")
	if err != nil {
		return err
	}
	return write(w, append(escapeJSON(text), '\n'))
}

func writeJSONLine(w io.Writer, value any) error {
	text, err := json.Marshal(jsonOf(value))
	if err != nil {
		return err
	}
	return write(w, append(escapeJSON(text), '\n'))
}

// jsonOf returns a value that json.Marshal writes as value, except that messages of the control API have the JSON names of their fields, a
// number for each integer, and all fields that are not messages.
func jsonOf(value any) any {
	switch v := value.(type) {
	case proto.Message:
		return message{v.ProtoReflect()}
	case map[string]any:
		for key, in := range v {
			v[key] = jsonOf(in)
		}
		return v
	}
	if list := reflect.ValueOf(value); list.Kind() == reflect.Slice && list.Type().Elem().Implements(reflect.TypeFor[proto.Message]()) {
		messages := make([]any, list.Len())
		for i := range messages {
			messages[i] = jsonOf(list.Index(i).Interface())
		}
		return messages
	}
	return value
}

// message is a message of the control API that is written as JSON.
type message struct{ protoreflect.Message }

// MarshalJSON implements [json.Marshaler].
func (m message) MarshalJSON() ([]byte, error) {
	var text bytes.Buffer
	separator := byte('{')
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		isTime := f.Message() != nil && f.Message().FullName() == "google.protobuf.Timestamp"
		if f.Message() != nil && f.Cardinality() != protoreflect.Repeated && !isTime && !m.Has(f) {
			continue
		}
		value, err := json.Marshal(m.field(f, isTime))
		if err != nil {
			return nil, err
		}
		text.WriteByte(separator)
		fmt.Fprintf(&text, "%q:%s", f.JSONName(), value)
		separator = ','
	}
	text.WriteByte('}')
	return text.Bytes(), nil
}

// field returns the value of a field for json.Marshal.
func (m message) field(f protoreflect.FieldDescriptor, isTime bool) any {
	one := func(v protoreflect.Value) any {
		if in, ok := v.Interface().(protoreflect.Message); ok {
			return message{in}
		}
		return v.Interface()
	}
	value := m.Get(f)
	switch {
	case f.IsList():
		list := make([]any, value.List().Len())
		for i := range list {
			list[i] = one(value.List().Get(i))
		}
		return list
	case f.IsMap():
		entries := map[string]any{}
		for key, in := range value.Map().Range {
			entries[key.String()] = one(in)
		}
		return entries
	case isTime && m.Has(f):
		at, _ := value.Message().Interface().(*timestamppb.Timestamp)
		return at.AsTime()
	case isTime:
		return nil
	}
	return one(value)
}

// writeYAML writes a value as YAML with the keys of its JSON form.
func writeYAML(w io.Writer, value any) error {
	text, err := json.Marshal(jsonOf(value))
	if err != nil {
		return err
	}
	// The YAML parser refuses unprintable characters that are not escaped.
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

// quoteTabs makes the encoder quote strings with tabs. In block style, YAML could take the tabs for indentation.
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

// each returns the results of f for all elements of list.
func each[T, R any](list []T, f func(T) R) []R {
	results := make([]R, len(list))
	for i, t := range list {
		results[i] = f(t)
	}
	return results
}

// writeLines escapes and writes lines.
func writeLines(w io.Writer, lines []string) error {
	var text bytes.Buffer
	for _, line := range lines {
		text.WriteString(escape(line))
		text.WriteByte('\n')
	}
	return write(w, text.Bytes())
}

func write(w io.Writer, text []byte) error {
	_, err := io.Copy(w, bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("cannot write the output: %w", err)
	}
	return nil
}
