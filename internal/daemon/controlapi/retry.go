package controlapi

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/pluginruntime"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

func (c *service) RetryPlugin(_ context.Context, request *patchbayv1.RetryPluginRequest) (*patchbayv1.RetryPluginResponse, error) {
	asked, err := c.askedFor(request)
	if err != nil {
		return nil, err
	}
	announced := c.names.Announced(asked)
	switch err := c.config.Runtime.Retry(announced.Type, announced.Name); {
	case errors.Is(err, pluginruntime.ErrUnknown):
		return nil, c.unknown(asked)
	case err != nil:
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	return &patchbayv1.RetryPluginResponse{}, nil
}

func (c *service) ReleaseName(ctx context.Context, request *patchbayv1.ReleaseNameRequest) (*patchbayv1.ReleaseNameResponse, error) {
	asked, err := c.askedFor(request)
	if err != nil {
		return nil, err
	}
	announced := c.names.Announced(asked)
	switch err := c.config.Runtime.ReleaseName(ctx, announced.Type, announced.Name); {
	case errors.Is(err, pluginruntime.ErrNotReserved):
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	case ctx.Err() != nil:
		return nil, ended(ctx)
	case err != nil:
		return nil, connect.NewError(connect.CodeInternal, errors.New(untrusted.Valid(err.Error())))
	}
	return &patchbayv1.ReleaseNameResponse{}, nil
}
