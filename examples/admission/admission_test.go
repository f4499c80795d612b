//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/plugin"
)

// programEnv makes the test binary the program itself.
const programEnv = "PATCHBAY_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
		os.Exit(0)
	}
	leaktest.Main(m)
}

// keys makes a key pair.
func keys(t *testing.T) (keyFile, publicKey string) {
	t.Helper()
	keyFile = filepath.Join(t.TempDir(), "key")
	return keyFile, strings.TrimSpace(output(t, "keygen", keyFile))
}

// output runs the program and returns what it prints.
func output(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func pin(name, content string) plugin.Pin {
	digest := sha256.Sum256([]byte(content))
	return plugin.Pin{PackageName: name, InstanceID: base64.RawURLEncoding.EncodeToString(append(digest[:], 2))}
}

func listLine(name, content string) string {
	return fmt.Sprintf("%s %x\n", name, sha256.Sum256([]byte(content)))
}

func TestUnderAHost(t *testing.T) {
	t.Setenv(programEnv, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	keyFile, publicKey := keys(t)
	signed := output(t, "sign", keyFile, write(t, "# what may run\n"+listLine("a", "one")+listLine("a", "two")+"\n"+listLine("b", "one")))

	h := &host.Host{}
	if err := h.Initialize(plugin.Config{}); err != nil {
		t.Fatal(err)
	}
	defer h.Close(context.Background())
	ask := func(signed string, p plugin.Pin) error {
		t.Helper()
		a := host.NewAdmission(t.Context(), h, host.Spec{
			Args: []string{os.Args[0], "--list", write(t, signed), "--public-key", publicKey},
		}, time.Minute)
		defer a.Close(context.Background())
		return a.CheckAdmission(p).Wait(t.Context())
	}
	for _, p := range []plugin.Pin{pin("a", "one"), pin("a", "two"), pin("b", "one")} {
		if err := ask(signed, p); err != nil {
			t.Errorf("%v is in the list: %v", p, err)
		}
	}
	for _, c := range []struct {
		pin  plugin.Pin
		want string
	}{
		{pin("b", "two"), "b is in the signed list with another digest than"},
		{pin("c", "one"), "c is not in the signed list"},
		{plugin.Pin{PackageName: "a", InstanceID: "latest"}, `instance "latest" of a is named by no SHA-256 digest`},
		{plugin.Pin{PackageName: "a", InstanceID: strings.TrimSuffix(pin("a", "one").InstanceID, "C") + "D"}, "named by no SHA-256 digest"},
	} {
		err := ask(signed, c.pin)
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want one that says %q", c.pin, err, c.want)
		}
	}
	// A list that cannot be trusted admits nothing.
	if err := ask(strings.Replace(signed, "b ", "c ", 1), pin("a", "one")); !errors.Is(err, host.ErrAborted) {
		t.Errorf("with a changed list: %v, want %v", err, host.ErrAborted)
	} else {
		t.Log(err)
	}
}

func TestListsThatAreNotTrusted(t *testing.T) {
	keyFile, publicKey := keys(t)
	_, otherKey := keys(t)
	signed := output(t, "sign", keyFile, write(t, listLine("a", "one")))
	changed := []byte(signed)
	changed[len(changed)-10] ^= 1 // in the signature
	for name, c := range map[string]struct{ list, key, want string }{
		"unsigned":          {listLine("a", "one"), publicKey, "its last line is not a signature"},
		"empty":             {"", publicKey, "its last line is not a signature"},
		"line changed":      {strings.Replace(signed, "a ", "b ", 1), publicKey, "it was changed after it was signed"},
		"line added":        {listLine("b", "one") + signed, publicKey, "it was changed after it was signed"},
		"line after it":     {signed + listLine("b", "one"), publicKey, "its last line is not a signature"},
		"signature changed": {string(changed), publicKey, "signature is not"},
		"signature cut":     {signed[:len(signed)-9], publicKey, "signature is not"},
		"another key":       {signed, otherKey, "signed with another key"},
		"no key":            {signed, "key", "--public-key is not what keygen printed"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadList(write(t, c.list), c.key)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one that says %q", err, c.want)
			}
		})
	}
	if _, err := loadList(write(t, signed), publicKey); err != nil {
		t.Error(err)
	}
}

func TestWhatIsNotSigned(t *testing.T) {
	keyFile, _ := keys(t)
	for text, want := range map[string]string{
		"a\n":            "line 1 has 1 words",
		"\n# x\na b c\n": "line 3 has 3 words",
		"a abc\n":        `line 1: "abc" is not a SHA-256 digest`,
		output(t, "sign", keyFile, write(t, listLine("a", "one"))): "line 2: ",
	} {
		err := run(t.Context(), []string{"sign", keyFile, write(t, text)}, &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("signing %q: %v, want an error that says %q", text, err, want)
		}
	}
	if err := run(t.Context(), []string{"keygen", keyFile}, &bytes.Buffer{}); !errors.Is(err, os.ErrExist) {
		t.Errorf("making a key over another: %v, want %v", err, os.ErrExist)
	}
	if err := run(t.Context(), []string{"--list", "x"}, &bytes.Buffer{}); !errors.Is(err, errUsage) {
		t.Errorf("without a key: %v, want the usage", err)
	}
}

func FuzzList(f *testing.F) {
	f.Add([]byte(listLine("a", "one")))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseList(text)
		if err == nil && l.check(plugin.Pin{}) == nil {
			t.Error("a pin without a name is admitted")
		}
	})
}
