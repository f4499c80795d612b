package daemon

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/fleet"
)

func (s fleetService) DrainNode(ctx context.Context, request *patchbayv1.DrainNodeRequest) (*patchbayv1.DrainNodeResponse, error) {
	return operate(s, &patchbayv1.DrainNodeResponse{}, func(m *fleetMember) error {
		return m.cluster.Drain(ctx, m.space, request.GetNode(), m.node)
	})
}

func (s fleetService) UncordonNode(ctx context.Context, request *patchbayv1.UncordonNodeRequest) (*patchbayv1.UncordonNodeResponse, error) {
	return operate(s, &patchbayv1.UncordonNodeResponse{}, func(m *fleetMember) error {
		return m.cluster.Uncordon(ctx, m.space, request.GetNode())
	})
}

func (s fleetService) ForgetNode(ctx context.Context, request *patchbayv1.ForgetNodeRequest) (*patchbayv1.ForgetNodeResponse, error) {
	return operate(s, &patchbayv1.ForgetNodeResponse{}, func(m *fleetMember) error {
		return m.cluster.Forget(ctx, m.space, request.GetNode())
	})
}

// operate does what an operator asks for and returns the answer.
func operate[A any](s fleetService, answer *A, do func(*fleetMember) error) (*A, error) {
	if s.member == nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errNoFleet)
	}
	err := do(s.member)
	switch {
	case errors.Is(err, fleet.ErrNoNode):
		return nil, connect.NewError(connect.CodeNotFound, fleet.ErrNoNode)
	case err != nil:
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New(valid(reasonOf(err))))
	}
	return answer, nil
}

// reasonOf returns an error without what was tried, which the caller says.
func reasonOf(err error) string {
	if inner := errors.Unwrap(err); inner != nil {
		return inner.Error()
	}
	return err.Error()
}

func (s fleetService) ListLocks(ctx context.Context, _ *patchbayv1.ListLocksRequest) (*patchbayv1.ListLocksResponse, error) {
	if s.member == nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errNoFleet)
	}
	locks, err := s.member.cluster.Locks(ctx, s.member.space)
	if err != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New(valid(reasonOf(err))))
	}
	return &patchbayv1.ListLocksResponse{Locks: each(locks, func(l fleet.LockState) *patchbayv1.FleetLock {
		return &patchbayv1.FleetLock{
			Type: valid(l.Type), Name: valid(l.Name), Node: l.Node, FencingToken: l.Token, Candidates: uint32(l.Candidates),
		}
	})}, nil
}
