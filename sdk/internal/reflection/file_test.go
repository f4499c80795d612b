package reflection

import (
	"fmt"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// sources have what the files that are linked into this test do not.
var sources = map[string]string{
	"two.proto": `syntax = "proto2"; package two; import "google/protobuf/descriptor.proto";
extend google.protobuf.FieldOptions { optional string note = 50001; }
message M {
	option deprecated = true;
	required int32 number = 1 [default = -7, (note) = "a note"];
	optional bytes raw = 2 [default = "\0\x7f\"'\\é"]; optional string text = 3 [default = "é\n"];
	optional double far = 4 [default = -inf]; optional float near = 5 [default = 1.5e-10]; optional double none = 6 [default = nan];
	optional bool yes = 7 [default = true]; optional E e = 8 [default = TWO]; optional uint64 most = 9 [default = 18446744073709551615];
	repeated int32 packed = 10 [packed = true]; repeated int32 loose = 11;
	repeated group Old = 12 { optional string inner = 1; }
	oneof choice { string a = 13; M b = 14; }
	map<string, M> named = 15;
	extensions 100 to 199, 1000 to max; reserved 20, 30 to 39; reserved "gone", "lost";
	extend M { optional int32 within = 101; }
	enum Nested { ZERO = 0; reserved 5 to 9; reserved "OTHER"; }
}
extend M { repeated string more = 100 [deprecated = true]; }
enum E { option allow_alias = true; ONE = 1; TWO = 2 [deprecated = true]; ALSO = 2; MINUS = -1; }
service S { option deprecated = true;
	rpc One(M) returns (M) { option idempotency_level = IDEMPOTENT; } rpc Up(stream M) returns (M); rpc Down(M) returns (stream M); }`,
	"three.proto": `syntax = "proto3"; package three; import public "two.proto"; option go_package = "x/y";
message M { optional int32 maybe = 1; int32 plain = 2; repeated int32 packed = 3; repeated int32 loose = 4 [packed = false];
	map<int32, bytes> m = 5; string odd_name = 6 [json_name = "other"]; repeated two.M list = 7; repeated E es = 8; }
enum E { NONE = 0; }`,
	"edition.proto": `edition = "2023"; package edition;
message M { int32 explicit = 1; int32 implicit = 2 [features.field_presence = IMPLICIT];
	int32 must = 3 [features.field_presence = LEGACY_REQUIRED]; repeated int32 packed = 4;
	repeated int32 loose = 5 [features.repeated_field_encoding = EXPANDED]; M framed = 6; M marked = 7 [features.message_encoding = DELIMITED];
	oneof choice { string a = 8; } map<string, M> named = 9; string raw = 10 [features.utf8_validation = NONE]; extensions 100 to 200; }
extend M { int32 more = 100; }
enum Open { NONE = 0; } enum Closed { option features.enum_type = CLOSED; ONE = 1; }`,
}

// all returns the files of sources, and those that are linked.
func all(t *testing.T) (linked *protoregistry.Files) {
	t.Helper()
	linked = new(protoregistry.Files)
	add := func(d protoreflect.FileDescriptor) {
		if err := linked.RegisterFile(d); err != nil {
			t.Fatal(err)
		}
	}
	protoregistry.GlobalFiles.RangeFiles(func(d protoreflect.FileDescriptor) bool {
		add(d)
		return true
	})
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{Accessor: protocompile.SourceAccessorFromMap(sources)}),
	}
	for _, path := range []string{"two.proto", "three.proto", "edition.proto"} {
		compiled, err := compiler.Compile(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		d, err := protodesc.NewFile(protoutil.ProtoFromFileDescriptor(compiled[0]), linked)
		if err != nil {
			t.Fatal(err)
		}
		add(d)
	}
	return linked
}

// plain is a file without what is not encoded: where the source says what, options of ranges of extensions, which are for compilers, and a
// name of extensions in JSON that nobody uses.
func plain(file *descriptorpb.FileDescriptorProto) *descriptorpb.FileDescriptorProto {
	file = proto.CloneOf(file)
	file.SourceCodeInfo = nil
	unname := func(extensions []*descriptorpb.FieldDescriptorProto) {
		for _, e := range extensions {
			e.JsonName = nil
		}
	}
	var walk func([]*descriptorpb.DescriptorProto)
	walk = func(messages []*descriptorpb.DescriptorProto) {
		for _, m := range messages {
			unname(m.GetExtension())
			for _, span := range m.GetExtensionRange() {
				span.Options = nil
			}
			walk(m.GetNestedType())
		}
	}
	unname(file.GetExtension())
	walk(file.GetMessageType())
	return file
}

// TestFile compares files with what the library of protocol buffers makes of them.
func TestFile(t *testing.T) {
	n := 0
	for d := range all(t).RangeFiles {
		n++
		got := &descriptorpb.FileDescriptorProto{}
		if err := proto.Unmarshal(file(d, options()), got); err != nil {
			t.Errorf("%s: %v", d.Path(), err)
		}
		raw, err := proto.Marshal(plain(protodesc.ToFileDescriptorProto(d)))
		want := &descriptorpb.FileDescriptorProto{}
		if err == nil {
			err = proto.Unmarshal(raw, want) // options of those who compile are no longer known by name
		}
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, want) {
			t.Errorf("%s is\n%v\nwant\n%v", d.Path(), got, want)
		}
	}
	if n < 10 {
		t.Errorf("%d files", n)
	}
}

// TestFileWithoutOptions: a program without descriptor.proto says all that matters to those who encode and decode messages.
func TestFileWithoutOptions(t *testing.T) {
	files := all(t)
	for d := range files.RangeFiles {
		got := &descriptorpb.FileDescriptorProto{}
		if err := proto.Unmarshal(file(d, encoder{derived}), got); err != nil {
			t.Errorf("%s: %v", d.Path(), err)
		}
		read, err := protodesc.NewFile(got, files)
		if err != nil {
			t.Errorf("%s: %v", d.Path(), err)
			continue
		}
		compareMessages(t, read.Messages(), d.Messages())
		compareEnums(t, read.Enums(), d.Enums())
		compareFields(t, read.Extensions(), d.Extensions())
	}
}

func compareMessages(t *testing.T, got, want protoreflect.MessageDescriptors) {
	t.Helper()
	for i := range want.Len() {
		got, want := got.Get(i), want.Get(i)
		if got.IsMapEntry() != want.IsMapEntry() {
			t.Errorf("%s: an entry of a map: %t", want.FullName(), got.IsMapEntry())
		}
		compareFields(t, got.Fields(), want.Fields())
		compareFields(t, got.Extensions(), want.Extensions())
		compareMessages(t, got.Messages(), want.Messages())
		compareEnums(t, got.Enums(), want.Enums())
	}
}

func compareEnums(t *testing.T, got, want protoreflect.EnumDescriptors) {
	t.Helper()
	for i := range want.Len() {
		if got.Get(i).IsClosed() != want.Get(i).IsClosed() {
			t.Errorf("%s: closed: %t", want.Get(i).FullName(), got.Get(i).IsClosed())
		}
	}
}

func compareFields[L list[D], D protoreflect.FieldDescriptor](t *testing.T, got, want L) {
	t.Helper()
	about := func(d protoreflect.FieldDescriptor) string {
		return fmt.Sprint(d.Number(), d.Kind(), d.Cardinality(), d.IsPacked(), d.HasPresence(), d.IsMap(), d.JSONName(), d.HasOptionalKeyword())
	}
	for i := range want.Len() {
		if got, want := about(got.Get(i)), about(want.Get(i)); got != want {
			t.Errorf("a field is %s, want %s", got, want)
		}
	}
}
