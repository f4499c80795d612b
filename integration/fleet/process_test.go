package fleet_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// memberEnv has this program be a member of etcd instead: its value is a spec.
const memberEnv = "PATCHBAY_TEST_MEMBER"

// memberSpec is what a process that is a member has to know.
type memberSpec struct{ Name, Dir, Token, Client, Peer, Cluster string }

// beMember is the main function of a member that is a process, which can be stopped and killed.
func beMember(text string) error {
	var spec memberSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return err
	}
	etcd, err := embed.StartEtcd(spec.config())
	if err != nil {
		return err
	}
	return <-etcd.Err()
}

func (s memberSpec) config() *embed.Config {
	config := embed.NewConfig()
	config.Name, config.Dir, config.InitialClusterToken, config.InitialCluster = s.Name, s.Dir, s.Token, s.Cluster
	config.ListenClientUrls, config.AdvertiseClientUrls = urls(s.Client), urls(s.Client)
	config.ListenPeerUrls, config.AdvertisePeerUrls = urls(s.Peer), urls(s.Peer)
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	config.UnsafeNoFsync = true
	config.BcryptCost = 4
	return config
}

// startThreeProcesses returns a cluster of three members that are processes.
func startThreeProcesses(t testing.TB) []*member {
	t.Helper()
	members := make([]*member, 3)
	var all, clients []string
	for i := range members {
		members[i] = newMember(t, nil)
		members[i].name = fmt.Sprintf("m%d", i)
		all, clients = append(all, members[i].name+"="+members[i].peer), append(clients, members[i].client)
	}
	for _, m := range members {
		m.cluster = strings.Join(all, ",")
		m.dir = filepath.Join(t.TempDir(), m.name)
		m.launchProcess()
	}
	eventually(t, "the members answer", func() bool {
		client, err := clientv3.New(clientv3.Config{Endpoints: clients, Logger: zap.NewNop(), DialTimeout: time.Second})
		if err != nil {
			return false
		}
		defer client.Close()
		_, err = client.Get(soon(t), "x")
		return err == nil
	})
	return members
}

// launchProcess starts the member as a process.
func (m *member) launchProcess() {
	m.t.Helper()
	spec, err := json.Marshal(m.spec())
	if err != nil {
		m.t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	m.process = exec.Command(program)
	m.process.Env = append(os.Environ(), memberEnv+"="+string(spec))
	m.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.process.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		_ = m.process.Process.Kill()
		_ = m.process.Wait()
	})
}

// freeze stops the process of a member, or lets it go on.
func (m *member) freeze(stop bool) {
	signal := syscall.SIGCONT
	if stop {
		signal = syscall.SIGSTOP
	}
	if err := m.process.Process.Signal(signal); err != nil {
		m.t.Error(err)
	}
}
