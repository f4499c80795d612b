package cipd

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	cipdv1 "github.com/patchbay-dev/patchbay/api/patchbay/cipd/v1"
)

func TestHandshake(t *testing.T) {
	var line bytes.Buffer
	if err := WriteHandshake(&line, 4711, "a.b"); err != nil {
		t.Fatal(err)
	}
	if want := `{"port":4711,"ticket":"a.b"}` + "\n"; line.String() != want {
		t.Errorf("the handshake is %q, want %q", line.String(), want)
	}
}

// TestFieldNumbers holds the messages against the wire that plugins have been built for.
func TestFieldNumbers(t *testing.T) {
	type fields = map[protoreflect.FieldNumber]protoreflect.Kind
	const (
		text    = protoreflect.StringKind
		message = protoreflect.MessageKind
		number  = protoreflect.Int32Kind
	)
	want := map[protoreflect.Name]fields{
		"ObjectRef":               {1: protoreflect.EnumKind, 2: text},
		"LogRequest":              {1: text, 2: text},
		"ListMetadataRequest":     {1: text, 2: text, 3: message, 4: text, 20: number, 21: text},
		"ListMetadataResponse":    {1: message, 20: text},
		"InstanceMetadata":        {1: text, 2: protoreflect.BytesKind, 3: text, 4: text, 5: text, 6: message},
		"ListAdmissionsRequest":   {1: number, 2: text},
		"Admission":               {1: text, 2: text, 3: text, 4: message},
		"ResolveAdmissionRequest": {1: text, 2: message},
		"Status":                  {1: number, 2: text},
	}
	got := map[protoreflect.Name]fields{}
	messages := cipdv1.File_patchbay_cipd_v1_cipd_proto.Messages()
	for i := range messages.Len() {
		m := messages.Get(i)
		got[m.Name()] = fields{}
		for j := range m.Fields().Len() {
			got[m.Name()][m.Fields().Get(j).Number()] = m.Fields().Get(j).Kind()
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the fields differ (-want +got):\n%s", diff)
	}
}
