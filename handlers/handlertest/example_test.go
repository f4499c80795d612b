package handlertest_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/handlertest"
)

// The handler of docs/how-to/handlers.md.
type myHandler struct {
	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

func (h *myHandler) ValidatePlugin(name, endpoint string, versions []string) error {
	if !slices.Contains(versions, "v1") {
		return fmt.Errorf("plugin %s speaks none of the versions that are supported; announce v1", name)
	}
	return nil
}

func (h *myHandler) RegisterPlugin(name, endpoint string, versions []string, timeout *time.Duration) error {
	conn, err := grpc.NewClient("unix:"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		h.DeRegisterPlugin(name) // an error leaves no instance of that name behind
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if former := h.conns[name]; former != nil {
		former.Close() // a re-registration
	}
	h.conns[name] = conn
	return nil
}

func (h *myHandler) DeRegisterPlugin(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if conn := h.conns[name]; conn != nil {
		conn.Close()
		delete(h.conns, name)
	}
}

func TestHandlerOfTheDocumentation(t *testing.T) {
	handlertest.Suite{
		NewHandler: func(string) (cache.PluginHandler, error) {
			return &myHandler{conns: map[string]*grpc.ClientConn{}}, nil
		},
		Versions:      []string{"v1"},
		WrongVersions: [][]string{nil, {"v2"}},
	}.Test(t)
}

// A handler's author has a test that calls Test. Here a program asks what the suite says of a handler.
func Example() {
	err := handlertest.Suite{
		NewHandler: func(string) (cache.PluginHandler, error) {
			return &myHandler{conns: map[string]*grpc.ClientConn{}}, nil
		},
		Versions:      []string{"v1"},
		WrongVersions: [][]string{nil, {"v2"}},
		WrongNames:    []string{"../plugin"},
		Patience:      5 * time.Second, // it has no timeouts of its own that would take longer
	}.Run()
	fmt.Println(err)
	// Output:
	// Validate: ValidatePlugin accepts the name "../plugin", which is wrong
}
