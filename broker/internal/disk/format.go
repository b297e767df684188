package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/trusted"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// programs are where mke2fs may be.
var programs = []string{"/usr/sbin/mke2fs", "/sbin/mke2fs"}

const (
	// formatTimeout bounds one run, which takes some 10 ms.
	formatTimeout = 30 * time.Second
	// maxOutput is how much of its output an error carries, in bytes.
	maxOutput = 2048
)

// formatArgs say all that a host's configuration could: no journal, for an
// image does not survive its host's crash; no reserved blocks; checksums,
// without which inode tables would have to be written; one inode for 8 KiB.
// The images don't have a UUID of their own, which nobody would look for.
var formatArgs = []string{
	"mke2fs", "-q", "-F", "-b", "4096", "-I", "256", "-i", "8192", "-m", "0", "-U", "clear",
	"-O", "none,sparse_super,filetype,ext_attr,dir_index,extent,flex_bg,large_file,huge_file,dir_nlink,extra_isize,metadata_csum",
	"-E", "nodiscard,lazy_itable_init=1",
}

// format makes a file system in memory and returns what it consists of.
func format(ctx context.Context, size int64) ([]extent, error) {
	if size < MinSize {
		return nil, unavailable("make it that small", fmt.Sprintf("use at least %d bytes", MinSize), nil)
	}
	program, err := findProgram()
	if err != nil {
		return nil, err
	}
	defer program.Close()
	var files [2]*os.File
	for i, name := range []string{"image", "output"} {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
		if err != nil {
			return nil, unavailable("keep a file in memory", "use a kernel with memory files", err)
		}
		files[i] = os.NewFile(uintptr(fd), name)
		defer files[i].Close()
	}
	image, output := files[0], files[1]
	if err := image.Truncate(size); err != nil {
		return nil, unavailable("format that much", "choose a smaller state", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	ctx, cancel := context.WithTimeout(ctx, formatTimeout)
	defer cancel()
	p, err := process.Start(process.Command{
		Executable: int(program.Fd()), Args: append(formatArgs, "/proc/self/fd/3"),
		Env:   []string{"MKE2FS_CONFIG=" + os.DevNull},
		Files: []int{int(null.Fd()), int(output.Fd()), int(output.Fd()), int(image.Fd())},
	})
	if err != nil {
		return nil, unavailable("start mke2fs", "install e2fsprogs anew", err)
	}
	defer p.Close()
	if err := p.Wait(ctx); err != nil {
		return nil, unavailable("wait for mke2fs", "look at the load of the host", errors.Join(err, p.Kill(context.WithoutCancel(ctx))))
	}
	if exit, ok := p.Exit(); !ok || exit.Code != 0 {
		said := make([]byte, maxOutput)
		n, _ := output.ReadAt(said, 0)
		return nil, unavailable("format the image", "choose another size for state", fmt.Errorf("mke2fs ended with %s and said %s", exit, strconv.Quote(string(said[:n]))))
	}
	return extents(image)
}

// findProgram opens the host's mke2fs, by whose descriptor it is executed.
func findProgram() (*os.File, error) {
	var failed error
	for _, path := range programs {
		f, err := trusted.OpenExecutable(path)
		if err == nil {
			return f, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, &wire.Error{
		Code: wire.CodeDiskUnavailable, Message: "homes of bounded size need the program mke2fs, which can't be used",
		Advice: "install the package e2fsprogs, or set state to \"unlimited\" in every profile", Err: failed,
	}
}

// extents reads what is in a sparse file (lseek(2), SEEK_DATA).
func extents(f *os.File) ([]extent, error) {
	var all []extent
	for at := int64(0); ; {
		from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read a file system: %w", err)
		}
		if at, err = unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE); err != nil {
			return nil, fmt.Errorf("read a file system: %w", err)
		}
		data, err := io.ReadAll(io.NewSectionReader(f, from, at-from))
		if err != nil {
			return nil, fmt.Errorf("read a file system: %w", err)
		}
		all = append(all, extent{from, data})
	}
}
