package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/internal/catalogue"
)

var update = flag.Bool("update", false, "write the files that are generated from the types")

const docsDir = "../../docs/reference"

// descriptions are the doc comments of the fields of all structs, by TYPE.FIELD.
func descriptions(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, dir := range []string{".", "../catalogue", "../../plugin", "../../trust"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			parsed, err := goparser.ParseFile(token.NewFileSet(), file, nil, goparser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				if structure, ok := spec.Type.(*ast.StructType); ok {
					for _, field := range structure.Fields.List {
						for _, name := range field.Names {
							found[parsed.Name.Name+"."+spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
						}
					}
				}
				return true
			})
		}
	}
	return found
}

// describe returns what the comment of a field says, with the key instead of the field's name.
func describe(t *testing.T, docs map[string]string, owner reflect.Type, field reflect.StructField) string {
	t.Helper()
	text, ok := strings.CutPrefix(docs[owner.String()+"."+field.Name], field.Name+" ")
	if !ok {
		t.Fatalf("the comment of %s.%s does not begin with its name", owner, field.Name)
	}
	return field.Tag.Get("json") + " " + text
}

// object is a JSON object whose keys keep their order.
type object []entry

type entry struct {
	key   string
	value any
}

func (o object) MarshalJSON() ([]byte, error) {
	var text bytes.Buffer
	text.WriteByte('{')
	for i, e := range o {
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, "%q:", e.key)
		var value bytes.Buffer
		encoder := json.NewEncoder(&value)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(e.value); err != nil {
			return nil, err
		}
		text.Write(value.Bytes())
	}
	text.WriteByte('}')
	return text.Bytes(), nil
}

// durationPattern matches what [time.ParseDuration] reads, but for signs.
const durationPattern = `^([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))*$|^0$`

// schemaOf returns the schema of a type. The default is left out if it is the zero value.
func schemaOf(t *testing.T, docs map[string]string, typ reflect.Type, tag reflect.StructTag, path string) object {
	t.Helper()
	switch typ {
	case durationType:
		return object{{"type", "string"}, {"pattern", durationPattern}}
	case reflect.TypeFor[catalogue.Bytes]():
		return object{{"type", []string{"string", "number"}}, {"pattern", catalogue.BytesPattern}, {"exclusiveMinimum", 0}}
	case reflect.TypeFor[catalogue.CPU]():
		return object{{"type", []string{"string", "number"}}, {"pattern", catalogue.CPUPattern}, {"exclusiveMinimum", 0}}
	}
	switch typ.Kind() {
	case reflect.String:
		s := object{{"type", "string"}}
		if words := tag.Get("enum"); words != "" {
			s = append(s, entry{"enum", strings.Split(words, ",")})
		}
		switch path {
		case "plugins[].name":
			s = append(s, entry{"pattern", catalogue.NamePattern})
		case "plugins[].sha256":
			s = append(s, entry{"pattern", catalogue.SHA256Pattern})
		}
		return s
	case reflect.Bool:
		return object{{"type", "boolean"}}
	case reflect.Int:
		least := 1
		if tag.Get("zero") != "" {
			least = 0
		}
		return object{{"type", "integer"}, {"minimum", least}}
	case reflect.Slice:
		s := object{{"type", "array"}, {"items", schemaOf(t, docs, typ.Elem(), tag, path+"[]")}}
		if path == "plugins[].command" {
			s = append(s, entry{"minItems", 1})
		}
		return s
	case reflect.Map:
		return object{{"type", "object"}, {"additionalProperties", schemaOf(t, docs, typ.Elem(), tag, path+".*")}}
	case reflect.Struct:
		return schemaOfStruct(t, docs, typ, path)
	default:
		t.Fatalf("%s has the type %s", path, typ)
		return nil
	}
}

func schemaOfStruct(t *testing.T, docs map[string]string, typ reflect.Type, path string) object {
	t.Helper()
	var properties object
	var required []string
	for field := range typ.Fields() {
		key := field.Tag.Get("json")
		of := object{{"description", describe(t, docs, typ, field)}}
		of = append(of, schemaOf(t, docs, field.Type, field.Tag, join(path, key))...)
		if value := defaultOf(typ, field.Name); value != "" && field.Tag.Get("required") == "" {
			of = append(of, entry{"default", jsonDefault(field.Type, value)})
		}
		properties = append(properties, entry{key, of})
		if field.Tag.Get("required") != "" {
			required = append(required, key)
		}
	}
	s := object{{"type", "object"}, {"additionalProperties", false}}
	if required != nil {
		s = append(s, entry{"required", required})
	}
	return append(s, entry{"properties", properties})
}

// defaultOf returns the text of the default of a field, empty if that is the zero value or a map of values.
func defaultOf(typ reflect.Type, name string) string {
	value := reflect.New(typ)
	if with, ok := value.Interface().(defaulter); ok {
		with.SetDefaults()
	}
	return defaultText(value.Elem().FieldByName(name))
}

func defaultText(v reflect.Value) string {
	if value, ok := v.Interface().(time.Duration); ok && value != 0 {
		return duration(value)
	}
	if v.IsZero() || v.Kind() == reflect.Struct {
		return ""
	}
	return fmt.Sprint(v.Interface())
}

func jsonDefault(typ reflect.Type, text string) any {
	if k := typ.Kind(); k == reflect.Bool || k == reflect.Int {
		return json.RawMessage(text)
	}
	return text
}

func generatedSchema(t *testing.T) []byte {
	t.Helper()
	s := object{
		{"$schema", "https://json-schema.org/draft/2020-12/schema"},
		{"$id", "https://patchbay.dev/schema/v1alpha1/config.json"},
		{"title", "Configuration of the Patchbay daemon"},
	}
	s = append(s, schemaOfStruct(t, descriptions(t), reflect.TypeFor[Config](), "")...)
	compact, err := s.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, compact, "", "  "); err != nil {
		t.Fatal(err)
	}
	return append(indented.Bytes(), '\n')
}

// row is one line of the reference.
type row struct{ key, typ, initial, change, meaning string }

// rowsOf returns the keys of a struct and of the structs in it.
func rowsOf(t *testing.T, docs map[string]string, typ reflect.Type, path, initial string, restart bool) []row {
	t.Helper()
	var rows []row
	for field := range typ.Fields() {
		key := join(path, field.Tag.Get("json"))
		needsRestart := (restart || field.Tag.Get("restart") != "") && field.Tag.Get("reload") == ""
		r := row{key: key, typ: typeName(field.Type), initial: defaultOf(typ, field.Name), change: "reload", meaning: describe(t, docs, typ, field)}
		r.meaning = meaningOf(strings.TrimPrefix(r.meaning, field.Tag.Get("json")+" "))
		if words := field.Tag.Get("enum"); words != "" {
			r.typ = strings.ReplaceAll(words, ",", ", ")
		}
		switch {
		case field.Tag.Get("required") != "":
			r.initial = "required"
		case r.initial != "":
			r.initial = "`" + r.initial + "`"
		case initial != "":
			r.initial = initial
		}
		if needsRestart {
			r.change = "restart"
		}
		rows = append(rows, r)
		inner, suffix := field.Type, ""
		switch {
		case inner.Kind() == reflect.Slice:
			inner, suffix = inner.Elem(), "[]"
		case inner.Kind() == reflect.Map:
			inner, suffix = inner.Elem(), ".TYPE"
		}
		if inner.Kind() != reflect.Struct {
			continue
		}
		below := rowsOf(t, docs, inner, key+suffix, "", needsRestart)
		if suffix == "" {
			withDefaults(typ, field.Name, below, key)
		}
		rows = append(rows, below...)
	}
	return rows
}

// withDefaults enters the defaults that a struct has because of the one around it.
func withDefaults(typ reflect.Type, name string, rows []row, path string) {
	outer := reflect.New(typ)
	if with, ok := outer.Interface().(defaulter); ok {
		with.SetDefaults()
	}
	var walk func(v reflect.Value, path string)
	walk = func(v reflect.Value, path string) {
		for i := range v.NumField() {
			key := join(path, v.Type().Field(i).Tag.Get("json"))
			if v.Field(i).Kind() == reflect.Struct {
				walk(v.Field(i), key)
			} else if text := defaultText(v.Field(i)); text != "" {
				for j := range rows {
					if rows[j].key == key {
						rows[j].initial = "`" + text + "`"
					}
				}
			}
		}
	}
	walk(outer.Elem().FieldByName(name), path)
}

// meaningOf turns a predicate, such as "is the file that …", into a phrase for a table.
func meaningOf(predicate string) string {
	predicate = regexp.MustCompile(`^(is|are|says) `).ReplaceAllString(predicate, "")
	return strings.ToUpper(predicate[:1]) + predicate[1:]
}

func typeName(typ reflect.Type) string {
	switch typ {
	case durationType:
		return "duration"
	case reflect.TypeFor[catalogue.Bytes](), reflect.TypeFor[catalogue.CPU]():
		return "quantity"
	}
	switch typ.Kind() {
	case reflect.Slice:
		return "list of " + typeName(typ.Elem()) + "s"
	case reflect.Map:
		return "map of " + typeName(typ.Elem()) + "s"
	case reflect.Struct:
		return "map"
	case reflect.Bool:
		return "boolean"
	case reflect.Int:
		return "number"
	default:
		return "text"
	}
}

const (
	beginReference = "<!-- What follows is generated: go test ./internal/config -run Generated -update -->\n"
	endReference   = "<!-- End of what is generated. -->\n"
)

func generatedReference(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("| key | value | default | change | meaning |\n|---|---|---|---|---|\n")
	for _, r := range rowsOf(t, descriptions(t), reflect.TypeFor[Config](), "", "", false) {
		fmt.Fprintf(&text, "| `%s` | %s | %s | %s | %s |\n", r.key, r.typ, r.initial, r.change, strings.ReplaceAll(r.meaning, "|", `\|`))
	}
	return text.String()
}

// TestGenerated compares the files that are generated from the types with what the types say now. With -update it writes them.
func TestGenerated(t *testing.T) {
	schema := generatedSchema(t)
	reference := filepath.Join(docsDir, "configuration.md")
	page, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), beginReference)
	_, after, ok2 := strings.Cut(rest, endReference)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the reference", reference)
	}
	for file, want := range map[string]string{
		"patchbay.schema.json":                         string(schema),
		filepath.Join(docsDir, "patchbay.schema.json"): string(schema),
		reference: before + beginReference + generatedReference(t) + endReference + after,
	} {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s is not what the types say; run this test with -update (-want +got):\n%s", file, diff)
		}
	}
}
