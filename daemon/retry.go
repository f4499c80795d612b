package daemon

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/patchbay-dev/patchbay"
	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

func (c *control) RetryPlugin(
	_ context.Context, request *connect.Request[patchbayv1.RetryPluginRequest],
) (*connect.Response[patchbayv1.RetryPluginResponse], error) {
	ptype, name := request.Msg.GetType(), request.Msg.GetName()
	if err := requirePlugin(ptype, name); err != nil {
		return nil, err
	}
	switch err := c.source.Retry(ptype, name); {
	case errors.Is(err, patchbay.ErrUnknown):
		return nil, c.unknown(ptype, name)
	case err != nil:
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	return connect.NewResponse(&patchbayv1.RetryPluginResponse{}), nil
}

func (c *control) ReleaseName(
	ctx context.Context, request *connect.Request[patchbayv1.ReleaseNameRequest],
) (*connect.Response[patchbayv1.ReleaseNameResponse], error) {
	ptype, name := request.Msg.GetType(), request.Msg.GetName()
	if err := requirePlugin(ptype, name); err != nil {
		return nil, err
	}
	switch err := c.source.ReleaseName(ctx, ptype, name); {
	case errors.Is(err, patchbay.ErrNotKept):
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	case ctx.Err() != nil:
		return nil, ended(ctx)
	case err != nil:
		return nil, connect.NewError(connect.CodeInternal, errors.New(valid(err.Error())))
	}
	return connect.NewResponse(&patchbayv1.ReleaseNameResponse{}), nil
}
