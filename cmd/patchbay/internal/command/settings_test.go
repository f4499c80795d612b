package command

import "testing"

func TestPaths(t *testing.T) {
	for name, test := range map[string]struct {
		uid  int
		env  map[string]string
		want Paths
	}{
		"root": {0, map[string]string{"XDG_RUNTIME_DIR": "/run/user/0", "HOME": "/root"}, Paths{
			"/run/patchbay/plugins", "/run/patchbay/device-plugins", "/run/patchbay/control.sock", "/var/lib/patchbay/state.db",
			"/etc/patchbay/patchbay.yaml",
		}},
		"user": {1000, map[string]string{"XDG_RUNTIME_DIR": "/run/user/1000", "HOME": "/home/u"}, Paths{
			"/run/user/1000/patchbay/plugins", "/run/user/1000/patchbay/device-plugins", "/run/user/1000/patchbay/control.sock",
			"/home/u/.local/state/patchbay/state.db",
			"/home/u/.config/patchbay/patchbay.yaml",
		}},
		"state directory": {1000, map[string]string{"XDG_RUNTIME_DIR": "/r", "XDG_STATE_HOME": "/s", "HOME": "/home/u"}, Paths{
			"/r/patchbay/plugins", "/r/patchbay/device-plugins", "/r/patchbay/control.sock", "/s/patchbay/state.db",
			"/home/u/.config/patchbay/patchbay.yaml",
		}},
		"relative paths": {1000, map[string]string{"XDG_RUNTIME_DIR": "r", "XDG_STATE_HOME": "s", "XDG_CONFIG_HOME": "c", "HOME": "/home/u"}, Paths{
			"/home/u/.local/state/patchbay/plugins", "/home/u/.local/state/patchbay/device-plugins",
			"/home/u/.local/state/patchbay/control.sock", "/home/u/.local/state/patchbay/state.db",
			"/home/u/.config/patchbay/patchbay.yaml",
		}},
		"config directory alone": {1000, map[string]string{"XDG_CONFIG_HOME": "/c"}, Paths{Config: "/c/patchbay/patchbay.yaml"}},
		"nothing known":          {1000, nil, Paths{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := PathsFor(test.uid, func(key string) string { return test.env[key] })
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
