package command

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
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
)

// Choice is a flag that takes one of a few words. It implements pflag.Value.
type Choice struct {
	Value   string
	allowed []string
}

func (c *Choice) String() string { return c.Value }

// Set implements pflag.Value.
func (c *Choice) Set(value string) error {
	if !slices.Contains(c.allowed, value) {
		return fmt.Errorf("must be one of %s", strings.Join(c.allowed, ", "))
	}
	c.Value = value
	return nil
}

// Type implements pflag.Value; the help shows it in the place of the value.
func (c *Choice) Type() string { return strings.Join(c.allowed, "|") }

// AddChoice adds a flag whose first allowed word is the default. It also completes the words.
func AddChoice(cmd *cobra.Command, name, shorthand, usage string, allowed ...string) *Choice {
	c := &Choice{Value: allowed[0], allowed: allowed}
	cmd.Flags().VarP(c, name, shorthand, usage)
	CompleteFlag(cmd, name, cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// AddWords adds a flag that takes a list of known words. The usage quotes the name of the value with backquotes.
func AddWords(cmd *cobra.Command, words *[]string, name, usage string, known []string) {
	cmd.Flags().Func(name, usage, func(list string) error {
		for word := range strings.SplitSeq(list, ",") {
			if !slices.Contains(known, word) {
				return fmt.Errorf("%q is not known: use any of %s", word, strings.Join(known, ", "))
			}
			*words = append(*words, word)
		}
		return nil
	})
	CompleteFlag(cmd, name, cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp))
}

// CompleteFlag sets the completion of an existing flag.
func CompleteFlag(cmd *cobra.Command, name string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
		panic(err)
	}
}

// AddOutput adds the flag --output with the formats first, json, yaml and more.
func AddOutput(cmd *cobra.Command, first string, more ...string) *Choice {
	return AddChoice(cmd, "output", "o", "output format", append([]string{first, "json", "yaml"}, more...)...)
}

// Print writes a value as JSON or YAML or, for other formats, calls text.
func (c *Choice) Print(cmd *cobra.Command, value any, text func(io.Writer) error) error {
	w := cmd.OutOrStdout()
	switch c.Value {
	case "json":
		return WriteJSON(w, value)
	case "yaml":
		return WriteYAML(w, value)
	}
	return text(w)
}

// PrintList is [Choice.Print] for a list that also has the format name.
func PrintList[T any](cmd *cobra.Command, output *Choice, list []T, names func([]T) []string, text func(io.Writer) error) error {
	return output.Print(cmd, list, func(w io.Writer) error {
		if output.Value == "name" {
			return WriteLines(w, names(list))
		}
		return text(w)
	})
}

// AddLines adds the flag --output for a stream of values.
func AddLines(cmd *cobra.Command) *Choice {
	return AddChoice(cmd, "output", "o", "output format: one line of text, or one JSON object a line", "text", "json")
}

// PrintLines writes each value of a sequence as one line. If endless is set, an interrupt is not an error.
func PrintLines[T any](cmd *cobra.Command, output *Choice, all iter.Seq2[T, error], endless bool, text func(io.Writer, T) error) error {
	for one, err := range all {
		switch {
		case endless && errors.Is(err, context.Canceled):
			return nil
		case err != nil:
			return err
		case output.Value == "json":
			err = WriteJSONLine(cmd.OutOrStdout(), one)
		default:
			err = text(cmd.OutOrStdout(), one)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// AddPastAndNew adds the flags of commands that show past records and can follow new ones.
func AddPastAndNew(cmd *cobra.Command, follow *bool, tail **uint32, coming, what string) {
	cmd.Flags().BoolVarP(follow, "follow", "f", false, "continue with "+coming)
	cmd.Flags().Func("tail", "`number` of past "+what+" to show (default all that are kept)", func(text string) error {
		n, err := strconv.ParseUint(text, 10, 32)
		*tail = new(uint32(n))
		return err
	})
}

// WriteJSON writes a value as indented JSON.
func WriteJSON(w io.Writer, value any) error {
	text, err := json.MarshalIndent(JSONOf(value), "", "  ")
	if err != nil {
		return err
	}
	return console.Write(w, append(console.EscapeJSON(text), '\n'))
}

// WriteJSONLine writes a value as one line of JSON.
func WriteJSONLine(w io.Writer, value any) error {
	text, err := json.Marshal(JSONOf(value))
	if err != nil {
		return err
	}
	return console.Write(w, append(console.EscapeJSON(text), '\n'))
}

// JSONOf returns a value that json.Marshal writes as value, except that messages of the control API have the JSON names of their fields, a
// number for each integer, and all fields that are not messages.
func JSONOf(value any) any {
	switch v := value.(type) {
	case proto.Message:
		return message{v.ProtoReflect()}
	case map[string]any:
		for key, in := range v {
			v[key] = JSONOf(in)
		}
		return v
	}
	if list := reflect.ValueOf(value); list.Kind() == reflect.Slice && list.Type().Elem().Implements(reflect.TypeFor[proto.Message]()) {
		messages := make([]any, list.Len())
		for i := range messages {
			messages[i] = JSONOf(list.Index(i).Interface())
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

// WriteYAML writes a value as YAML with the keys of its JSON form.
func WriteYAML(w io.Writer, value any) error {
	text, err := json.Marshal(JSONOf(value))
	if err != nil {
		return err
	}
	// The YAML parser refuses unprintable characters that are not escaped.
	var tree any
	if err := yaml.Unmarshal(console.EscapeJSON(text), &tree); err != nil {
		return err
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(quoteTabs(tree)); err != nil {
		return err
	}
	return console.Write(w, out.Bytes())
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

// Each returns the results of f for all elements of list.
func Each[T, R any](list []T, f func(T) R) []R {
	results := make([]R, len(list))
	for i, t := range list {
		results[i] = f(t)
	}
	return results
}

// WriteLines escapes and writes lines.
func WriteLines(w io.Writer, lines []string) error {
	var text bytes.Buffer
	for _, line := range lines {
		text.WriteString(console.Escape(line))
		text.WriteByte('\n')
	}
	return console.Write(w, text.Bytes())
}

// UsageError is an error in the command line.
type UsageError struct{ error }

func (e UsageError) Unwrap() error { return e.error }

// WrongUsage returns a [UsageError] that refers to the help of cmd.
func WrongUsage(cmd *cobra.Command, format string, args ...any) error {
	wrong := fmt.Errorf(format, args...)
	return UsageError{fmt.Errorf("%w; see %q", wrong, cmd.CommandPath()+" --help")}
}
