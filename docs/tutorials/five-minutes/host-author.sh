#!/usr/bin/env bash
# From git clone to a plugin of your own that a host of your own calls. Run it in an empty directory.
set -euo pipefail
trap 'kill $(jobs -p)' EXIT

git clone -q https://github.com/patchbay-dev/patchbay
go install -C patchbay ./cmd/patchbay
patchbay init plugin hello.example.com --type Greeter --replace patchbay
make -C hello build
cat > main.go << 'END'
package main

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/plugin"
)

func main() {
	ctx := context.Background()
	host, err := patchbay.New(patchbay.Config{PluginDirs: []string{"plugins"}})
	if err != nil {
		log.Fatal(err)
	}
	host.AddHandler("Greeter", patchbay.AcceptHandler())
	go host.Run(ctx)
	if err := host.WaitForPlugins(ctx, plugin.Name{Type: "Greeter", Name: "hello.example.com"}); err != nil {
		log.Fatal(err)
	}
	conn, err := host.Registry().Conn(ctx, "Greeter", "hello.example.com")
	if err != nil {
		log.Fatal(err)
	}
	answer := new(wrapperspb.StringValue)
	if err := conn.Invoke(ctx, "/hello.v1.Greeter/Greet", wrapperspb.String("Ada"), answer); err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.GetValue())
}
END
go mod init example.com/host
go mod edit -replace github.com/patchbay-dev/patchbay=./patchbay
go mod tidy
mkdir plugins
hello/bin/hello plugins/hello.sock &
go run .
