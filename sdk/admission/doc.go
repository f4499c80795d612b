// Package admission is for the authors of admission plugins, which a host launches and asks whether packages may be deployed. Such a plugin
// is one function, from a pin and its metadata to an error:
//
//	err := admission.Serve(ctx, func(ctx context.Context, pin plugin.Pin, md admission.Metadata) error {
//		for entry, err := range md.List(ctx, "signature") {
//			…
//		}
//		return errors.New("no signature")
//	})
//
// Nil admits; an error refuses and is what people read; a panic refuses. The package decides nothing by itself and keeps no answers: the
// host does.
package admission
