// Package admission is for authors of admission plugins, which a host launches and asks whether packages may be deployed. An admission
// plugin is one function from a pin and its metadata to an error:
//
//	err := admission.Serve(ctx, func(ctx context.Context, pin plugin.Pin, md admission.Metadata) error {
//		for entry, err := range md.List(ctx, "signature") {
//			…
//		}
//		return errors.New("no signature")
//	})
//
// Nil admits. An error refuses, and its text is shown to people. A panic refuses too. The package makes no decisions and caches no answers;
// the host does.
package admission
