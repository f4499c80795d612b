package boltstate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// What follows is the file format of bbolt, version 2, in the byte order of the machine, as its sources define it
// (go.etcd.io/bbolt/internal/common: page.go, meta.go, inode.go). bbolt maps its files into memory and follows the page numbers in them
// without checks, which in a damaged file causes a panic, a bus error or an endless recursion. checkPages is therefore called first.
const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2

	pageHeaderSize = 16 // id uint64, flags uint16, count uint16, overflow uint32
	elementSize    = 16 // branch: pos, ksize uint32, page uint64; leaf: flags, pos, ksize, vsize uint32
	bucketSize     = 16 // root page uint64, sequence uint64; root page 0: the bucket's only page follows inline
	metaSize       = 64 // magic, version, page size, flags uint32, root bucket, freelist, pages, transaction, checksum uint64

	branchFlag   = 0x01
	leafFlag     = 0x02
	freelistFlag = 0x10

	bucketLeafFlag = 0x01
	noFreelist     = 1<<64 - 1
	minPageSize    = 1024
	maxPageSize    = 16 << 20
)

var order = binary.NativeEndian

type pages struct {
	file io.ReaderAt
	meta boltMeta
	used []bool // by page number
}

type boltMeta struct {
	pageSize                           uint64
	root, freelist, pages, transaction uint64
}

// checkPages checks that bbolt can read a file of the given size: that all pages exist, that none is used twice, and that their elements
// are within them and in order.
func checkPages(file io.ReaderAt, size int64) error {
	meta, err := readMeta(file, size)
	if err != nil {
		return err
	}
	if meta.pages > uint64(size)/meta.pageSize {
		return fmt.Errorf("it ends too early: it has %d bytes of %d", size, meta.pages*meta.pageSize)
	}
	p := &pages{file: file, meta: meta, used: make([]bool, meta.pages)}
	if meta.freelist != noFreelist {
		if err := p.checkFreelist(); err != nil {
			return err
		}
	}
	return p.checkTree(meta.root, keys{})
}

// readMeta returns the newer of the two meta pages. After a crash, one of them may be torn.
func readMeta(file io.ReaderAt, size int64) (boltMeta, error) {
	meta, err := newerMeta(file, size)
	switch {
	case err != nil:
		return meta, err
	case meta.pageSize < minPageSize || meta.pageSize > maxPageSize || meta.pageSize&(meta.pageSize-1) != 0:
		return meta, fmt.Errorf("its page size is %d", meta.pageSize)
	case uint64(size) < 2*meta.pageSize:
		return meta, fmt.Errorf("it ends too early: it has %d bytes", size)
	}
	return meta, nil
}

// newerMeta finds the meta pages as bbolt does. The second is page 1, and the first, if it is valid, has the page size.
func newerMeta(file io.ReaderAt, size int64) (boltMeta, error) {
	first, err := readMetaAt(file, 0)
	if err != nil {
		for pageSize := int64(minPageSize); pageSize <= maxPageSize && pageSize < size; pageSize *= 2 {
			if second, err := readMetaAt(file, pageSize); err == nil && second.pageSize == uint64(pageSize) {
				return second, checkFlip(file, 0, second)
			}
		}
		return first, err
	}
	second, err := readMetaAt(file, int64(first.pageSize))
	switch {
	case err != nil:
		return first, checkFlip(file, int64(first.pageSize), first) // the first one is the valid one
	case second.transaction <= first.transaction:
		return first, nil
	}
	if second.pageSize != first.pageSize {
		return first, errors.New("its first pages do not agree")
	}
	return second, nil
}

// checkFlip returns an error if the damaged meta page at offset is newer than other and has one flipped bit. Such a page was completely
// written, so its transaction may have been acknowledged. A page that a crash tore, before that, differs in more bits.
func checkFlip(file io.ReaderAt, offset int64, other boltMeta) error {
	var page [pageHeaderSize + metaSize]byte
	if _, err := file.ReadAt(page[:], offset); err != nil {
		return nil //nolint:nilerr // the page does not exist
	}
	b := page[pageHeaderSize:]
	for bit := range metaSize * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		if meta, err := decodeMeta(b); err == nil && meta.transaction > other.transaction {
			return fmt.Errorf("it is damaged: bit %d of byte %d is flipped, and without that page the last change would be lost", bit%8,
				offset+pageHeaderSize+int64(bit/8))
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	return nil
}

func readMetaAt(file io.ReaderAt, offset int64) (boltMeta, error) {
	var page [pageHeaderSize + metaSize]byte
	if _, err := file.ReadAt(page[:], offset); err != nil {
		return boltMeta{}, fmt.Errorf("its first pages cannot be read: %w", err)
	}
	return decodeMeta(page[pageHeaderSize:])
}

func decodeMeta(b []byte) (boltMeta, error) {
	if order.Uint32(b) != boltMagic || order.Uint32(b[4:]) != boltVersion {
		return boltMeta{}, errors.New("it is not a bbolt file")
	}
	hash := fnv.New64a()
	_, _ = hash.Write(b[:metaSize-8])
	if order.Uint64(b[metaSize-8:]) != hash.Sum64() {
		return boltMeta{}, errors.New("its first pages are damaged")
	}
	return boltMeta{
		pageSize: uint64(order.Uint32(b[8:])),
		root:     order.Uint64(b[16:]), freelist: order.Uint64(b[32:]),
		pages: order.Uint64(b[40:]), transaction: order.Uint64(b[48:]),
	}, nil
}

// read returns a page with its overflow pages, and marks them as used.
func (p *pages) read(id uint64) ([]byte, error) {
	if id < 2 || id >= p.meta.pages {
		return nil, fmt.Errorf("page %d does not exist", id)
	}
	var header [pageHeaderSize]byte
	if _, err := p.file.ReadAt(header[:], int64(id*p.meta.pageSize)); err != nil {
		return nil, fmt.Errorf("page %d cannot be read: %w", id, err)
	}
	count := 1 + uint64(order.Uint32(header[12:]))
	if order.Uint64(header[:]) != id || count > p.meta.pages-id {
		return nil, fmt.Errorf("page %d is damaged", id)
	}
	for n := id; n < id+count; n++ {
		if err := p.use(n); err != nil {
			return nil, err
		}
	}
	page := make([]byte, count*p.meta.pageSize)
	if _, err := p.file.ReadAt(page, int64(id*p.meta.pageSize)); err != nil {
		return nil, fmt.Errorf("page %d cannot be read: %w", id, err)
	}
	return page, nil
}

func (p *pages) use(id uint64) error {
	if id < 2 || id >= p.meta.pages {
		return fmt.Errorf("page %d does not exist", id)
	}
	if p.used[id] {
		return fmt.Errorf("page %d is used twice", id)
	}
	p.used[id] = true
	return nil
}

func (p *pages) checkFreelist() error {
	page, err := p.read(p.meta.freelist)
	if err != nil {
		return err
	}
	if order.Uint16(page[8:]) != freelistFlag {
		return fmt.Errorf("page %d is not a list of free pages", p.meta.freelist)
	}
	ids, count := page[pageHeaderSize:], uint64(order.Uint16(page[10:]))
	if count == 0xFFFF { // more than 16 bits can hold: the number is the first element
		count = order.Uint64(ids)
		ids = ids[8:]
	}
	if count > uint64(len(ids)/8) {
		return fmt.Errorf("page %d is damaged", p.meta.freelist)
	}
	for ; count > 0; count-- {
		if err := p.use(order.Uint64(ids)); err != nil {
			return err
		}
		ids = ids[8:]
	}
	return nil
}

// keys bounds the keys of a page: its first key is first, and all are below high. A nil bound does not apply.
type keys struct{ first, high []byte }

// hold reports whether a key may follow previous on the page; for the first key, previous is nil.
func (k keys) hold(previous, key []byte) bool {
	if k.high != nil && bytes.Compare(key, k.high) >= 0 {
		return false
	}
	if previous == nil {
		return k.first == nil || bytes.Equal(key, k.first)
	}
	return bytes.Compare(previous, key) < 0
}

func (p *pages) checkTree(id uint64, within keys) error {
	page, err := p.read(id)
	if err != nil {
		return err
	}
	if err := p.checkPage(page, within); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// checkPage checks a branch or leaf page, which may be an inline one.
func (p *pages) checkPage(page []byte, within keys) error {
	if len(page) < pageHeaderSize {
		return errTruncated
	}
	flags, count := order.Uint16(page[8:]), int(order.Uint16(page[10:]))
	branch := flags == branchFlag
	if !branch && flags != leafFlag || (branch || within.first != nil) && count == 0 {
		return errors.New("it is not a page of a tree")
	}
	if len(page) < pageHeaderSize+count*elementSize {
		return errTruncated
	}
	elements := make([]element, count)
	var previous []byte
	for i := range elements {
		e, err := readElement(page[pageHeaderSize+i*elementSize:], branch)
		if err != nil {
			return err
		}
		if !within.hold(previous, e.key) {
			return errors.New("its keys are out of order")
		}
		elements[i], previous = e, e.key
	}
	for i, e := range elements {
		below := keys{first: e.key, high: within.high}
		if i+1 < count {
			below.high = elements[i+1].key
		}
		if err := p.checkElement(e, below); err != nil {
			return err
		}
	}
	return nil
}

// element is an element of a page: a reference to another page, a bucket, or a key with any value.
type element struct {
	key    []byte
	branch bool
	child  uint64 // of a branch
	value  []byte // of a bucket
}

// readElement reads the element at the beginning of b, which ends with the page.
func readElement(b []byte, branch bool) (element, error) {
	if branch {
		key, err := span(b, uint64(order.Uint32(b)), uint64(order.Uint32(b[4:])))
		return element{key: key, branch: true, child: order.Uint64(b[8:])}, err
	}
	pos, ksize, vsize := uint64(order.Uint32(b[4:])), uint64(order.Uint32(b[8:])), uint64(order.Uint32(b[12:]))
	key, err := span(b, pos, ksize)
	if err != nil {
		return element{}, err
	}
	value, err := span(b, pos+ksize, vsize)
	if order.Uint32(b)&bucketLeafFlag == 0 {
		return element{key: key}, err
	}
	if err == nil && len(value) < bucketSize {
		err = errTruncated
	}
	return element{key: key, value: value}, err
}

// checkElement checks the pages to which an element leads. below bounds the keys of a child page.
func (p *pages) checkElement(e element, below keys) error {
	switch {
	case e.branch:
		return p.checkTree(e.child, below)
	case e.value == nil:
		return nil
	}
	if root := order.Uint64(e.value); root != 0 {
		return p.checkTree(root, keys{})
	}
	return p.checkPage(e.value[bucketSize:], keys{})
}

func span(b []byte, pos, size uint64) ([]byte, error) {
	if pos < elementSize || pos+size > uint64(len(b)) {
		return nil, errTruncated
	}
	return b[pos : pos+size], nil
}
