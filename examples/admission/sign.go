package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
)

const (
	// signaturePrefix begins the last line of a signed list; the rest of it is the signature of all lines before it.
	signaturePrefix = "signature "
	// signatureContext keeps a signature of a list from being one of anything else.
	signatureContext = "patchbay example admission list"
	pemType          = "PRIVATE KEY"
)

// keygen makes a private key in a file that must not be there, and prints its public key.
func keygen(file string, stdout io.Writer) error {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	written := pem.Encode(f, &pem.Block{Type: pemType, Bytes: der})
	if err := errors.Join(written, f.Sync(), f.Close()); err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, base64.StdEncoding.EncodeToString(public))
	return err
}

// signFile prints a list with its signature. The list is checked first.
func signFile(keyFile, listFile string, stdout io.Writer) error {
	key, err := readPrivateKey(keyFile)
	if err != nil {
		return err
	}
	text, err := readBounded(listFile)
	if err != nil {
		return err
	}
	if _, err := parseList(text); err != nil {
		return fmt.Errorf("cannot sign %s: %w", listFile, err)
	}
	signed, err := sign(text, key)
	if err != nil {
		return fmt.Errorf("cannot sign %s: %w", listFile, err)
	}
	_, err = stdout.Write(signed)
	return err
}

func readPrivateKey(file string) (ed25519.PrivateKey, error) {
	text, err := readBounded(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != pemType {
		return nil, fmt.Errorf("%s has no private key; make one with keygen", file)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if key, ok := key.(ed25519.PrivateKey); ok {
		return key, nil
	}
	return nil, fmt.Errorf("%s has a key of another kind than Ed25519; make one with keygen", file)
}

// sign adds the signature line.
func sign(body []byte, key ed25519.PrivateKey) ([]byte, error) {
	if len(body) > 0 && body[len(body)-1] != '\n' {
		body = append(body, '\n')
	}
	signature, err := key.Sign(nil, body, &ed25519.Options{Context: signatureContext})
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(body, "%s%s\n", signaturePrefix, base64.StdEncoding.EncodeToString(signature)), nil
}

// verified returns the lines before the signature line if the signature is the key's.
func verified(signed []byte, key ed25519.PublicKey) ([]byte, error) {
	last := bytes.TrimSuffix(signed, []byte("\n"))
	at := bytes.LastIndexByte(last, '\n') + 1
	body, line := signed[:at], last[at:]
	encoded, ok := bytes.CutPrefix(line, []byte(signaturePrefix))
	if !ok {
		return nil, errors.New("its last line is not a signature; sign it with the command sign")
	}
	signature, err := base64.StdEncoding.DecodeString(string(encoded))
	if err != nil {
		return nil, fmt.Errorf("its signature is not base64: %w", err)
	}
	if ed25519.VerifyWithOptions(key, body, signature, &ed25519.Options{Context: signatureContext}) != nil {
		return nil, errors.New("its signature is not that of the public key; it was changed after it was signed, or signed with another key")
	}
	return body, nil
}
