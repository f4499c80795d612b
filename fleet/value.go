package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// format is the format of the values that this package writes, and the newest that it reads.
const format = 1

const (
	// maxPart is the size in bytes from which on the plugins of a node are split; etcd refuses requests above 1.5 MiB by default.
	maxPart = 256 << 10
	// maxTxn is the size of the values that are written in one transaction.
	maxTxn = 1 << 20
	// maxDetails is the size from which on the details of a plugin are left out.
	maxDetails = 32 << 10
)

var deterministic = proto.MarshalOptions{Deterministic: true}

// errNewer says that a value was written by a newer version that this one cannot understand.
var errNewer = errors.New("it is of a newer format")

// content is what a node publishes, without what changes with each writing.
type content struct {
	record  *fleetv1.NodeRecord
	plugins []*fleetv1.PluginRecord
}

func (c content) sameRecord(other content) bool { return proto.Equal(c.record, other.record) }

func (c content) samePlugins(other content) bool {
	return slices.EqualFunc(c.plugins, other.plugins, func(a, b *fleetv1.PluginRecord) bool { return proto.Equal(a, b) })
}

// encodeRecord returns the value of the record key.
func (c content) encodeRecord(now time.Time) ([]byte, error) {
	record := proto.CloneOf(c.record)
	record.WrittenAt = timestamppb.New(now)
	return deterministic.Marshal(record)
}

// encodeParts returns the values of the plugins keys: at least one.
func (c content) encodeParts(instance string, generation uint64, now time.Time) ([][]byte, error) {
	groups := [][]*fleetv1.PluginRecord{nil}
	size := 0
	for _, p := range c.plugins {
		n := proto.Size(p) + 8
		if last := len(groups) - 1; size+n > maxPart && len(groups[last]) > 0 {
			groups = append(groups, nil)
			size = 0
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], p)
		size += n
	}
	if len(groups) > maxParts {
		return nil, fmt.Errorf("cannot publish %d plugins: they would take %d parts, and %d is the most", len(c.plugins), len(groups), maxParts)
	}
	values := make([][]byte, len(groups))
	for i, group := range groups {
		value, err := deterministic.Marshal(&fleetv1.PluginsPart{
			Format: format, Instance: instance, Generation: generation, Parts: uint32(len(groups)), Part: uint32(i),
			WrittenAt: timestamppb.New(now), Plugins: group,
		})
		if err != nil {
			return nil, fmt.Errorf("cannot encode the plugins of the node: %w", err)
		}
		values[i] = value
	}
	return values, nil
}

// pluginRecords returns what is published of the plugins of a node: those that have said who they are.
func pluginRecords(statuses []reconciler.Status) []*fleetv1.PluginRecord {
	records := make([]*fleetv1.PluginRecord, 0, len(statuses))
	for _, s := range statuses {
		if s.Type == "" || s.Name == "" || s.State == reconciler.StateUnlinked { // the last is for its own node to see, and gone for others
			continue
		}
		p := &fleetv1.PluginRecord{
			Type: valid(s.Type), Name: valid(s.Name), Version: valid(s.Version), State: valid(string(s.State)), Instance: valid(s.Instance),
			Endpoint: valid(s.Endpoint), Source: valid(string(s.Source)), RegisteredAt: timestamp(s.RegisteredAt), Current: s.Current,
		}
		for _, role := range s.Registration.Roles {
			p.Roles = append(p.Roles, valid(role))
		}
		size := 0
		for key, value := range s.Registration.Details {
			if p.Details == nil {
				p.Details = map[string]string{}
			}
			p.Details[valid(key)] = valid(value)
			size += len(key) + len(value)
		}
		if size > maxDetails {
			p.Details = nil
		}
		records = append(records, p)
	}
	return records
}

func conditionRecords(conditions []Condition) []*fleetv1.Condition {
	records := make([]*fleetv1.Condition, 0, len(conditions))
	for _, c := range conditions {
		records = append(records, &fleetv1.Condition{Name: valid(c.Name), Ok: c.OK, Message: valid(c.Message), Since: timestamp(c.Since)})
	}
	slices.SortFunc(records, func(a, b *fleetv1.Condition) int { return strings.Compare(a.GetName(), b.GetName()) })
	return records
}

// formatted is a message that says of what format it is.
type formatted interface {
	proto.Message
	GetFormat() uint32
}

// decode reads a value, unless it is of a newer format.
func decode(value []byte, m formatted) error {
	if err := proto.Unmarshal(value, m); err != nil {
		return fmt.Errorf("it cannot be decoded: %w", err)
	}
	if m.GetFormat() > format {
		return errNewer
	}
	return nil
}

// valid makes a string fit for protobuf, which refuses a whole message for one that is not UTF-8. Paths may hold any bytes.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// timeOf returns zero also for a time beyond the years 1 to 9999, which no format for times can show.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if !t.IsValid() {
		return time.Time{}
	}
	return t.AsTime()
}
