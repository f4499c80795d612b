package rig

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of the registration
	"google.golang.org/grpc/mem"
)

const (
	// LargeAnswer is the size of an answer of a plugin with the options of [AnswersLarge].
	LargeAnswer = 100 << 20
	// largeMethod is what callers of such a plugin call.
	largeMethod = "/hostile.Large/Get"
)

// AnswersLarge returns the options of a plugin that answers every call but those of its own services with the same message of 100 MiB.
func AnswersLarge() []grpc.ServerOption {
	answer := mem.BufferSlice{mem.SliceBuffer(bytes.Repeat([]byte{7}, LargeAnswer))}
	return []grpc.ServerOption{
		grpc.MaxSendMsgSize(LargeAnswer), grpc.ForceServerCodecV2(readyCodec{encoding.GetCodecV2("proto")}),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error { return stream.SendMsg(answer) }),
	}
}

// readyCodec takes messages that are bytes already.
type readyCodec struct{ encoding.CodecV2 }

// Marshal implements [encoding.CodecV2].
func (c readyCodec) Marshal(m any) (mem.BufferSlice, error) {
	if ready, ok := m.(mem.BufferSlice); ok {
		return ready, nil
	}
	return c.CodecV2.Marshal(m)
}

// largeReader is a caller who reads the answer to its call as far as it wants.
type largeReader struct {
	net.Conn
	framer *http2.Framer
	got    int
	status string
}

// callLarge calls a plugin through a socket, with metadata that lead to it, and reads nothing.
func callLarge(path string, metadata []string) (*largeReader, error) {
	conn, err := net.Dial("unix", path) //nolint:noctx // it is at once
	if err != nil {
		return nil, err
	}
	r := &largeReader{Conn: conn, framer: http2.NewFramer(conn, conn)}
	r.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields := append([]string{
		":method", "POST", ":scheme", "http", ":path", largeMethod, ":authority", "x", "content-type", "application/grpc", "te", "trailers",
	}, metadata...)
	for i := 0; i < len(fields); i += 2 {
		if err := encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	_, err = conn.Write([]byte(http2.ClientPreface))
	return r, errors.Join(err, r.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}),
		r.framer.WriteWindowUpdate(0, 1<<31-1<<16),
		r.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}),
		r.framer.WriteData(1, true, make([]byte, 5)))
}

// read reads until it has so many bytes of the answer, or the call has ended.
func (r *largeReader) read(until int) error {
	for r.got < until && r.status == "" {
		f, err := r.framer.ReadFrame()
		if err != nil {
			return fmt.Errorf("after %d bytes: %w", r.got, err)
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			r.got += len(f.Data())
		case *http2.MetaHeadersFrame:
			if f.StreamEnded() || r.got > 0 {
				for _, field := range f.RegularFields() {
					if field.Name == "grpc-status" || field.Name == "grpc-message" {
						r.status += field.Value
					}
				}
			}
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = r.framer.WriteSettingsAck()
			}
		case *http2.RSTStreamFrame:
			err = fmt.Errorf("after %d bytes the call was reset: %v", r.got, f.ErrCode)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// CallLarge has callers call a plugin with [AnswersLarge] through a socket, with metadata that lead to it, and leave their answers while
// others do something. Then one in so many reads its answer to the end, and the others 1 MiB of it.
func CallLarge(t *testing.T, path string, metadata []string, callers, whole int, meanwhile func()) {
	t.Helper()
	errs := make([]error, callers)
	all := make([]*largeReader, callers)
	for i := range all {
		if all[i], errs[i] = callLarge(path, metadata); errs[i] != nil {
			t.Fatal(errs[i])
		}
		defer all[i].Close()
	}
	var wait sync.WaitGroup
	for i, r := range all {
		wait.Go(func() { errs[i] = r.read(1) })
	}
	wait.Wait()
	meanwhile()
	few := make(chan struct{}, 16)
	for i, r := range all {
		wait.Go(func() {
			few <- struct{}{}
			defer func() { <-few }()
			if errs[i] = errors.Join(errs[i], r.read(1<<20)); i%whole > 0 {
				return
			}
			if err := r.read(1 << 30); err != nil || r.status != "0" || r.got != LargeAnswer+5 {
				errs[i] = errors.Join(errs[i], fmt.Errorf("the call ended with status %q after %d bytes: %w", r.status, r.got, err))
			}
		})
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Errorf("calls failed: %.2000s", err)
	}
}

// BoundMemory moves a process to a control group of its own, which may have so much memory, and skips the test where there can be none.
func BoundMemory(t *testing.T, pid, most int) {
	t.Helper()
	name := "patchbay-test-" + strconv.Itoa(pid)
	for _, v := range []struct{ dir, limit string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"},
	} {
		dir := filepath.Join(v.dir, name)
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		if os.WriteFile(filepath.Join(dir, v.limit), []byte(strconv.Itoa(most)), 0o600) != nil {
			_ = syscall.Rmdir(dir)
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = os.WriteFile(filepath.Join(v.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600)
			ticker := time.NewTicker(50 * time.Millisecond) //nolint:forbidigo // nobody is told when it is empty
			defer ticker.Stop()
			for end := time.Now().Add(time.Minute); syscall.Rmdir(dir) != nil; <-ticker.C {
				if time.Now().After(end) {
					t.Error("the control group does not become empty")
					return
				}
			}
		})
		return
	}
	t.Skip("there is no control group of memory that this process may make")
}

// Peak returns the peak of a process's resident set in KiB.
func Peak(t *testing.T, pid int) (peak int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "VmHWM:")
	if _, err := fmt.Sscan(after, &peak); err != nil {
		t.Fatal(err)
	}
	return peak
}
