# A plugin on every node, as a system job of Nomad (1.11 or later). A new version is started on one node after the other. At the
# first one where it does not become healthy, all nodes that have it get the old version back, and the others keep it:
#
#	nomad job run -var version=1.4.3 hostdir.nomad.hcl
#
# Nomad 1.11.3 begins no other deployment of a system job after one that failed. Before the next version, run "nomad job stop -purge
# hostdir", which stops the plugin on all nodes.
variable "version" {
  type = string
}

job "hostdir" {
  type = "system"

  update {
    max_parallel     = 1
    health_check     = "task_states"
    min_healthy_time = "10s"
    healthy_deadline = "1m"
    auto_revert      = true
  }

  group "hostdir" {
    restart {
      attempts = 2
      delay    = "5s"
      interval = "1m"
      mode     = "fail"
    }

    task "driver" {
      driver = "raw_exec"
      config {
        command = "/usr/lib/hostdir/${var.version}/hostdir"
        args    = ["--socket", "/run/patchbay/plugins/hostdir.sock", "--node-id", "${node.unique.name}"]
      }
    }

    # The node is healthy once its daemon has registered the driver.
    task "registered" {
      lifecycle {
        hook = "poststart"
      }
      driver = "raw_exec"
      config {
        command = "/usr/bin/patchbay"
        args    = ["wait", "CSIPlugin/hostdir.example.com", "--timeout", "30s"]
      }
      env {
        PATCHBAY_CONTROL_SOCKET = "/run/patchbay/control.sock"
      }
    }
  }
}
