// The NFSv3 server of the library go-nfs, with a directory of this machine for each export.
//
// Usage: go-nfs [-read-only PATH] DIRECTORY
//
// Each directory in DIRECTORY is an export of that name. The server listens on a free port of the loopback address, and
// prints it as the only line on standard output. NFS and MOUNT share the port.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/osfs"
	"github.com/willscott/go-nfs"
	"github.com/willscott/go-nfs/helpers"
)

// directory is a file system whose attributes can be changed, and whose files can have several links.
type directory struct{ billy.Filesystem }

func (d directory) path(name string) string { return d.Join(d.Root(), name) }

func (d directory) Chmod(name string, mode os.FileMode) error {
	return os.Chmod(d.path(name), mode)
}

func (d directory) Lchown(name string, uid, gid int) error {
	return os.Lchown(d.path(name), uid, gid)
}

func (d directory) Chown(name string, uid, gid int) error {
	return os.Chown(d.path(name), uid, gid)
}

func (d directory) Chtimes(name string, accessed, modified time.Time) error {
	return os.Chtimes(d.path(name), accessed, modified)
}

func (d directory) Link(name, link string) error {
	return os.Link(d.path(name), d.path(link))
}

func (d directory) Mknod(string, uint32, uint32, uint32) error { return os.ErrInvalid }
func (d directory) Mkfifo(string, uint32) error                { return os.ErrInvalid }
func (d directory) Socket(string) error                        { return os.ErrInvalid }

// readOnly is a file system that the server refuses to change.
type readOnly struct{ billy.Filesystem }

func (readOnly) Capabilities() billy.Capability {
	return billy.ReadCapability | billy.SeekCapability
}

// exports selects the file system by the path that a client mounts.
type exports struct {
	nfs.Handler
	paths map[string]billy.Filesystem
}

func (e exports) Mount(_ context.Context, _ net.Conn, request nfs.MountRequest) (nfs.MountStatus, billy.Filesystem, []nfs.AuthFlavor) {
	found, ok := e.paths[filepath.Clean(string(request.Dirpath))]
	if !ok {
		// The library makes a handle even of a file system that it does not return.
		return nfs.MountStatusErrNoEnt, osfs.New("/nonexistent"), nil
	}
	return nfs.MountStatusOk, found, []nfs.AuthFlavor{nfs.AuthFlavorUnix}
}

func (e exports) Change(fs billy.Filesystem) billy.Change {
	change, _ := fs.(billy.Change)
	return change
}

func main() {
	readOnlyPath := flag.String("read-only", "", "path of an export that cannot be changed")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	entries, err := os.ReadDir(flag.Arg(0))
	if err != nil {
		log.Fatal(err)
	}
	paths := map[string]billy.Filesystem{}
	for _, entry := range entries {
		files := osfs.New(filepath.Join(flag.Arg(0), entry.Name()))
		path := "/" + entry.Name()
		if path == *readOnlyPath {
			paths[path] = readOnly{files}
		} else {
			paths[path] = directory{files}
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	handler := exports{Handler: helpers.NewNullAuthHandler(nil), paths: paths}
	// Handles that no longer fit become stale.
	log.Fatal(nfs.Serve(listener, helpers.NewCachingHandler(handler, 100_000)))
}
