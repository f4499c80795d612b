package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	goyaml "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"

	"github.com/patchbay-dev/patchbay/daemon"
	"github.com/patchbay-dev/patchbay/reconciler"
)

const (
	configAPIVersion = "patchbay.dev/v1alpha1"
	configKind       = "Config"
)

// configFile is the configuration file of the daemon. A value that is missing or empty leaves the default.
type configFile struct {
	APIVersion          string                     `json:"apiVersion"`
	Kind                string                     `json:"kind"`
	PluginDirs          []string                   `json:"pluginDirs"`
	DeprecatedPluginDir string                     `json:"deprecatedPluginDir"`
	State               string                     `json:"state"`
	ControlSocket       string                     `json:"controlSocket"`
	HTTP                string                     `json:"http"`
	Handlers            map[string]string          `json:"handlers"`
	Log                 logSection                 `json:"log"`
	Timeouts            timeoutsSection            `json:"timeouts"`
	TypeTimeouts        map[string]timeoutsSection `json:"typeTimeouts"`
}

type logSection struct {
	Level  string `json:"level"`
	Format string `json:"format"`
}

// timeoutsSection has durations as [time.ParseDuration] reads them.
type timeoutsSection struct {
	Dial    string `json:"dial"`
	GetInfo string `json:"getInfo"`
	Notify  string `json:"notify"`
	Handler string `json:"handler"`
}

// readConfig reads a configuration file. If it is optional and does not exist, found is false.
func readConfig(path string, optional bool) (options runOptions, found bool, err error) {
	text, err := os.ReadFile(path)
	if optional && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) {
		return runOptions{}, false, nil
	}
	if err != nil {
		return runOptions{}, false, fmt.Errorf("cannot read the config file: %w", err)
	}
	options, err = parseConfig(text)
	if err != nil {
		return runOptions{}, false, fmt.Errorf("cannot use config file %s: %w", path, err)
	}
	return options, true, nil
}

// parseConfig reads the text of a configuration file. What the file does not say is zero. Values that a [daemon.Config] has as well are
// left to [daemon.New] to check.
func parseConfig(text []byte) (runOptions, error) {
	var file configFile
	if err := decodeConfig(text, &file); err != nil {
		return runOptions{}, err
	}
	if file.APIVersion != configAPIVersion || file.Kind != configKind {
		return runOptions{}, fmt.Errorf("apiVersion is %q and kind is %q: this version reads apiVersion %s and kind %s",
			file.APIVersion, file.Kind, configAPIVersion, configKind)
	}
	options := runOptions{
		config: daemon.Config{
			PluginDirs:          file.PluginDirs,
			DeprecatedPluginDir: file.DeprecatedPluginDir,
			StatePath:           file.State,
			ControlSocket:       file.ControlSocket,
			HTTPAddr:            file.HTTP,
			Handlers:            map[string]daemon.HandlerKind{},
			TypeTimeouts:        map[string]reconciler.Timeouts{},
		},
		logLevel:  file.Log.Level,
		logFormat: file.Log.Format,
	}
	for ptype, kind := range file.Handlers {
		options.config.Handlers[ptype] = daemon.HandlerKind(kind)
	}
	for _, choice := range []struct {
		key, value string
		allowed    []string
	}{{"log.level", file.Log.Level, logLevels}, {"log.format", file.Log.Format, logFormats}} {
		if choice.value != "" && !slices.Contains(choice.allowed, choice.value) {
			return runOptions{}, fmt.Errorf("%s is %q: it must be one of %s", choice.key, choice.value, strings.Join(choice.allowed, ", "))
		}
	}
	var err error
	if options.config.Timeouts, err = file.Timeouts.parse("timeouts"); err != nil {
		return runOptions{}, err
	}
	for _, ptype := range slices.Sorted(maps.Keys(file.TypeTimeouts)) {
		if options.config.TypeTimeouts[ptype], err = file.TypeTimeouts[ptype].parse("typeTimeouts." + ptype); err != nil {
			return runOptions{}, err
		}
	}
	return options, nil
}

func (s timeoutsSection) parse(section string) (timeouts reconciler.Timeouts, err error) {
	for _, field := range []struct {
		key, value string
		to         *time.Duration
	}{
		{"dial", s.Dial, &timeouts.Dial},
		{"getInfo", s.GetInfo, &timeouts.GetInfo},
		{"notify", s.Notify, &timeouts.Notify},
		{"handler", s.Handler, &timeouts.Handler},
	} {
		if field.value == "" {
			continue
		}
		if *field.to, err = time.ParseDuration(field.value); err != nil || *field.to <= 0 {
			return reconciler.Timeouts{}, fmt.Errorf("%s.%s is %q: it must be a duration above zero, for example 5s or 500ms",
				section, field.key, field.value)
		}
	}
	return timeouts, nil
}

// decodeConfig reads strict YAML: nothing that the file says is ignored.
func decodeConfig(text []byte, file *configFile) error {
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return err
	}
	if !single(text) {
		return errors.New("something follows the first YAML document: the file may have only one")
	}
	// Looked for here, because package json ignores the case of keys and does not say where an unknown one stands.
	if key, found := unknownKey(tree, reflect.TypeFor[configFile]()); found {
		return fmt.Errorf("unknown key %q", key)
	}
	err := yaml.UnmarshalStrict(text, file)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s cannot be of type %s", cmp.Or(wrong.Field, "the file"), wrong.Value)
	}
	return err
}

// unknownKey returns the path of a key that does not belong into a value of a type, if there is one.
func unknownKey(value any, t reflect.Type) (path string, found bool) {
	object, _ := value.(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(object)) {
		inner, known := typeOfKey(t, key)
		if !known {
			return key, true
		}
		if rest, found := unknownKey(object[key], inner); found {
			return key + "." + rest, true
		}
	}
	return "", false
}

// typeOfKey returns the type of the value that belongs to a key of a struct or a map.
func typeOfKey(t reflect.Type, key string) (inner reflect.Type, known bool) {
	switch t.Kind() {
	case reflect.Map:
		return t.Elem(), true
	case reflect.Struct:
		for field := range t.Fields() {
			if field.Tag.Get("json") == key {
				return field.Type, true
			}
		}
		return nil, false
	default:
		return t, true // no object belongs here, and decoding says so
	}
}

// single says whether nothing follows the first YAML document, which is all that package sigs.k8s.io/yaml reads.
func single(text []byte) bool {
	decoder := goyaml.NewDecoder(bytes.NewReader(text))
	for range 2 {
		var document any
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			return true
		}
	}
	return false
}
