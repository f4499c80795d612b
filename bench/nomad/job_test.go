package main

import (
	"os"
	"testing"

	"github.com/hashicorp/nomad/jobspec2"
)

// TestJob parses the job of the examples with Nomad's own parser. TestNomadJob of integration/fleet runs it, where there is Nomad.
func TestJob(t *testing.T) {
	const path = "../../examples/fleet/hostdir.nomad.hcl"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	job, err := jobspec2.ParseWithConfig(&jobspec2.ParseConfig{Path: path, Body: text, ArgVars: []string{"version=1.4.3"}, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	job.Canonicalize()
	if *job.Type != "system" || *job.Update.MaxParallel != 1 || !*job.Update.AutoRevert {
		t.Errorf("the job has type %s and updates %+v", *job.Type, job.Update)
	}
	tasks := job.TaskGroups[0].Tasks
	if len(tasks) != 2 || tasks[0].Config["command"] != "/usr/lib/hostdir/1.4.3/hostdir" {
		t.Errorf("the first of %d tasks runs %v", len(tasks), tasks[0].Config["command"])
	}
}
