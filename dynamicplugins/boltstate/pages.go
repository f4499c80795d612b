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
// (go.etcd.io/bbolt/internal/common: page.go, meta.go, inode.go). bbolt trusts its files: it maps them into memory and follows the
// page numbers in them. In a damaged file that ends in a panic, a bus error or an endless recursion, so checkPages comes first.
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

// pages checks the pages of one file.
type pages struct {
	file io.ReaderAt
	meta boltMeta
	used []bool // by page number
}

type boltMeta struct {
	pageSize                           uint64
	root, freelist, pages, transaction uint64
}

// checkPages checks that bbolt can use a file of the given size without harm: that all pages are there, that each is used once, and
// that everything in them lies where it should.
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
	return p.checkTree(meta.root)
}

// readMeta returns the newer one of the two meta pages. One of them may be torn: that is how bbolt survives a crash.
func readMeta(file io.ReaderAt, size int64) (boltMeta, error) {
	meta, err := newerMeta(file, size)
	if err == nil && uint64(size) < 2*meta.pageSize {
		err = fmt.Errorf("it ends too early: it has %d bytes", size)
	}
	return meta, err
}

func newerMeta(file io.ReaderAt, size int64) (boltMeta, error) {
	first, err := readMetaAt(file, 0)
	if err != nil {
		// The second one is on page 1, and the page size is not known.
		for pageSize := int64(minPageSize); pageSize <= maxPageSize && pageSize < size; pageSize *= 2 {
			if second, err := readMetaAt(file, pageSize); err == nil && second.pageSize == uint64(pageSize) {
				return second, nil
			}
		}
		return boltMeta{}, err
	}
	second, err := readMetaAt(file, int64(first.pageSize))
	if err == nil && second.pageSize == first.pageSize && second.transaction > first.transaction {
		return second, nil
	}
	return first, nil
}

func readMetaAt(file io.ReaderAt, offset int64) (boltMeta, error) {
	var page [pageHeaderSize + metaSize]byte
	if _, err := file.ReadAt(page[:], offset); err != nil {
		return boltMeta{}, fmt.Errorf("its first pages cannot be read: %w", err)
	}
	b := page[pageHeaderSize:]
	if order.Uint32(b) != boltMagic || order.Uint32(b[4:]) != boltVersion {
		return boltMeta{}, errors.New("it is no bbolt file")
	}
	hash := fnv.New64a()
	_, _ = hash.Write(b[:metaSize-8])
	if order.Uint64(b[metaSize-8:]) != hash.Sum64() {
		return boltMeta{}, errors.New("its first pages are damaged")
	}
	m := boltMeta{
		pageSize: uint64(order.Uint32(b[8:])),
		root:     order.Uint64(b[16:]), freelist: order.Uint64(b[32:]),
		pages: order.Uint64(b[40:]), transaction: order.Uint64(b[48:]),
	}
	if m.pageSize < minPageSize || m.pageSize > maxPageSize || m.pageSize&(m.pageSize-1) != 0 {
		return boltMeta{}, fmt.Errorf("its page size is %d", m.pageSize)
	}
	return m, nil
}

// read reads a page with its overflow pages and marks them as used.
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
		return fmt.Errorf("page %d is no list of free pages", p.meta.freelist)
	}
	ids, count := page[pageHeaderSize:], uint64(order.Uint16(page[10:]))
	if count == 0xFFFF { // too many for 16 bits: the number comes first
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

// checkTree checks a page of a tree and what is below it.
func (p *pages) checkTree(id uint64) error {
	page, err := p.read(id)
	if err != nil {
		return err
	}
	if err := p.checkPage(page); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// checkPage checks the elements of a branch or leaf page, which may be an inline one.
func (p *pages) checkPage(page []byte) error {
	if len(page) < pageHeaderSize {
		return errTruncated
	}
	flags, count := order.Uint16(page[8:]), int(order.Uint16(page[10:]))
	if flags != branchFlag && flags != leafFlag || flags == branchFlag && count == 0 {
		return errors.New("it is no page of a tree")
	}
	if len(page) < pageHeaderSize+count*elementSize {
		return errTruncated
	}
	var previous []byte
	for i := range count {
		element := page[pageHeaderSize+i*elementSize:]
		key, err := p.checkElement(element, flags == branchFlag)
		if err != nil {
			return err
		}
		if i > 0 && bytes.Compare(previous, key) >= 0 {
			return errors.New("its keys are out of order")
		}
		previous = key
	}
	return nil
}

// checkElement checks the element at the beginning of b, which reaches to the end of its page, and what it points to. It returns
// its key.
func (p *pages) checkElement(b []byte, branch bool) ([]byte, error) {
	if branch {
		key, err := span(b, uint64(order.Uint32(b)), uint64(order.Uint32(b[4:])))
		if err != nil {
			return nil, err
		}
		return key, p.checkTree(order.Uint64(b[8:]))
	}
	pos, ksize, vsize := uint64(order.Uint32(b[4:])), uint64(order.Uint32(b[8:])), uint64(order.Uint32(b[12:]))
	key, err := span(b, pos, ksize)
	if err != nil {
		return nil, err
	}
	value, err := span(b, pos+ksize, vsize)
	if err != nil {
		return nil, err
	}
	if order.Uint32(b)&bucketLeafFlag == 0 {
		return key, nil
	}
	if len(value) < bucketSize {
		return nil, errTruncated
	}
	if root := order.Uint64(value); root != 0 {
		return key, p.checkTree(root)
	}
	return key, p.checkPage(value[bucketSize:])
}

// span returns size bytes of b at pos.
func span(b []byte, pos, size uint64) ([]byte, error) {
	if pos < elementSize || pos+size > uint64(len(b)) {
		return nil, errTruncated
	}
	return b[pos : pos+size], nil
}
