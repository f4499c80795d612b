package trust_test

import (
	"errors"
	"testing"

	"github.com/patchbay-dev/patchbay/trust"
)

// TestRefuses checks that New refuses keys of Types that are no plugin types, and users and groups that cannot exist, with the field.
func TestRefuses(t *testing.T) {
	types := func(key string) trust.Policy { return trust.Policy{Types: map[string]trust.Type{key: {}}} }
	for name, c := range map[string]struct {
		policy trust.Policy
		field  string
	}{
		"an empty type":          {types(""), "types."},
		"a type with a slash":    {types("a/b"), "types.a/b"},
		"a control character":    {types("a\x1b"), "types.a\x1b"},
		"a type that is no text": {types("a\xff"), "types.a\xff"},
		"an empty user":          {trust.Policy{Owners: trust.Accounts{Users: []string{""}}}, "owners.users"},
		"nobody's number":        {trust.Policy{Owners: trust.Accounts{Users: []string{"4294967295"}}}, "owners.users"},
		"a negative number":      {trust.Policy{Owners: trust.Accounts{Groups: []string{"-1"}}}, "owners.groups"},
		"a NUL in a name":        {trust.Policy{Types: map[string]trust.Type{"T": {Endpoints: []string{"a\x00"}}}}, "types.T.endpoints"},
	} {
		_, err := trust.New(c.policy)
		if wrong, ok := errors.AsType[*trust.FieldError](err); !ok || wrong.Field != c.field {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if _, err := trust.New(trust.Policy{Types: map[string]trust.Type{"my Type.v1": {}}}); err != nil {
		t.Error(err)
	}
}
