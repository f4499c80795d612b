package scaffold

// Repository is where Patchbay's go.mod is.
const Repository = repository

// Samples are one plugin of each kind.
var Samples = []Options{
	{Type: "CSIPlugin", Name: "disk.example.com"},
	{Type: "DevicePlugin", Name: "example.com/wid_get"},
	{Type: "DRAPlugin", Name: "gpu.example.com"},
	{Type: "MyPlugin", Name: "3-Hello", Module: "git.example.com/team/hello"},
}
