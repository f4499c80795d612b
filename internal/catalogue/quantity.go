package catalogue

import (
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
)

// Bytes is an amount of memory. Its text is that of a Kubernetes resource quantity: a decimal number and one of the suffixes k, M, G, T, P
// (powers of 1,000) or Ki, Mi, Gi, Ti, Pi (powers of 1,024), or none.
type Bytes int64

// CPU is a share of processors in thousandths. Its text is a decimal number of processors, or a whole number of thousandths with
// the suffix m.
type CPU int64

// The syntax of quantities, as regular expressions that are valid in JSON Schema, too.
const (
	// BytesPattern matches the texts of [Bytes].
	BytesPattern = `^\d{1,18}(\.\d{1,18})?([kMGTP]|[KMGTP]i)?$`
	// CPUPattern matches the texts of [CPU].
	CPUPattern = `^(\d{1,15}(\.\d{1,3})?|\d{1,18}m)$`
)

var (
	bytesText = regexp.MustCompile(BytesPattern)
	cpuText   = regexp.MustCompile(CPUPattern)
)

// suffixOf is the suffix of a unit.
type suffixOf struct {
	text  string
	bytes int64
}

// suffixes are in the order in which MarshalText tries them.
var suffixes = []suffixOf{
	{"Pi", 1 << 50}, {"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10},
	{"P", 1e15}, {"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3}, {"", 1},
}

// UnmarshalText implements [encoding.TextUnmarshaler]. A fraction of a byte is rounded up. Zero is an error.
func (b *Bytes) UnmarshalText(text []byte) error {
	match := bytesText.FindSubmatch(text)
	if match == nil {
		return fmt.Errorf("%q is not an amount of memory, for example 512Mi, 2G or 1000000", text)
	}
	number, suffix := text[:len(text)-len(match[2])], string(match[2])
	i := slices.IndexFunc(suffixes, func(s suffixOf) bool { return s.text == suffix }) // the pattern allows no others
	amount, ok := scaled(string(number), suffixes[i].bytes)
	if !ok {
		return fmt.Errorf("%q is not an amount of memory that can be limited: it must be above zero and below 8Ei", text)
	}
	*b = Bytes(amount)
	return nil
}

// MarshalText implements [encoding.TextMarshaler].
func (b Bytes) MarshalText() ([]byte, error) {
	for _, s := range suffixes {
		if b != 0 && int64(b)%s.bytes == 0 {
			return []byte(strconv.FormatInt(int64(b)/s.bytes, 10) + s.text), nil
		}
	}
	return []byte("0"), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler]. Zero is an error.
func (c *CPU) UnmarshalText(text []byte) error {
	if !cpuText.Match(text) {
		return fmt.Errorf("%q is not a number of processors, for example 2, 0.5 or 500m", text)
	}
	unit := int64(1000)
	if last := len(text) - 1; text[last] == 'm' {
		text, unit = text[:last], 1
	}
	amount, ok := scaled(string(text), unit)
	if !ok {
		return fmt.Errorf("%q is not a number of processors that can be limited: it must be above zero", text)
	}
	*c = CPU(amount)
	return nil
}

// MarshalText implements [encoding.TextMarshaler].
func (c CPU) MarshalText() ([]byte, error) {
	if c%1000 == 0 {
		return []byte(strconv.FormatInt(int64(c)/1000, 10)), nil
	}
	return []byte(strconv.FormatInt(int64(c), 10) + "m"), nil
}

// scaled returns the product of a decimal number and a unit, rounded up. It reports false if the product is zero or overflows.
func scaled(number string, unit int64) (amount int64, ok bool) {
	rat, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, false
	}
	rat.Mul(rat, new(big.Rat).SetInt64(unit))
	whole, rest := new(big.Int).QuoRem(rat.Num(), rat.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	return whole.Int64(), whole.IsInt64() && whole.Sign() > 0
}
