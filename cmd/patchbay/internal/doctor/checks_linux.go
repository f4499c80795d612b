package doctor

func checks() []check {
	return []check{
		{"user", checkUser},
		{"plugin-dirs", checkPluginDirs},
		{"sockets", checkSockets},
		{"state", checkState},
		{"control-socket", checkControlSocket},
		{"other-daemons", checkOtherDaemons},
		{"catalogue", checkCatalogue},
		{"fleet", checkFleet},
		{"open-files", checkOpenFiles},
		{"inotify", checkInotify},
		{"kernel", checkKernel},
		{"cgroup", checkCgroup},
		{"clock", checkClock},
	}
}
