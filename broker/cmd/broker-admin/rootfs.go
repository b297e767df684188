package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/rootfs"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/spf13/cobra"
)

func (a *app) rootfs() *cobra.Command {
	c := &cobra.Command{
		Use: "rootfs", Short: "Import, list, verify and remove root file systems",
		Long: `Import, list, verify and remove the root file systems of sessions.

Each is known by its digest, which names every file, mode and link in it. The
broker uses the one that broker.toml names:

  [rootfs]
  digest = "sha256:..."`,
	}
	c.AddCommand(a.rootfsImport(), a.rootfsList(), a.rootfsVerify(), a.rootfsRemove())
	return c
}

const importLong = `Import a root file system from a folder, a tar archive, or a tar stream on
standard input ("-"), plain or compressed with gzip:

  docker export CONTAINER | broker-admin rootfs import --normalize -

A root file system holds folders, files and symlinks that belong to root and
that nobody else can write. By default anything else is refused. With
--normalize it is changed or left out, and counted: owners set to root; setuid,
setgid and sticky bits, file capabilities, extended attributes and the write
permission of group and others removed; hard links made copies; device nodes,
named pipes, sockets, what is below /dev, and .dockerenv left out.

What aims outside of the tree or exceeds a limit is refused always. Missing
folders that sessions mount something on are made, and named.

Until all is checked and on the disk, nothing is in the store. Importing the
same again changes nothing.`

func (a *app) rootfsImport() *cobra.Command {
	var o rootfs.Options
	c := &cobra.Command{
		Use: "import SOURCE|-", Short: "Import a root file system from a folder or a tar stream", Long: importLong, Args: oneArg("source"),
		RunE: func(c *cobra.Command, args []string) error {
			o.Progress = importProgress(c.ErrOrStderr())
			r, err := importFrom(c.Context(), rootfs.At(a.layout), args[0], o)
			if err != nil {
				return err
			}
			return a.print(c.OutOrStdout(), r, importRows(r))
		},
	}
	c.Flags().BoolVar(&o.Normalize, "normalize", false, "change or leave out what a root file system may not have, and say so")
	c.Flags().StringVar(&o.Digest, "digest", "", "refuse it unless its digest is this one, sha256:...")
	return c
}

func importRows(r *rootfs.Result) [][]string {
	word := "imported"
	if r.AlreadyPresent {
		word = "there already"
	}
	rows := [][]string{{word, r.Digest}, {"entries", fmt.Sprint(r.Entries)}, {"size", mebibytes(r.Bytes)}}
	for _, place := range r.Made {
		rows = append(rows, []string{"folder made", place})
	}
	for _, change := range r.Changes {
		rows = append(rows, []string{"normalized", fmt.Sprintf("%s: %d (first: %q)", change.Did, change.Count, change.First)})
	}
	return rows
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// progressAfter is how long a command may take before it says how far it is,
// and progressEvery how often it says so then.
const (
	progressAfter = 2 * time.Second
	progressEvery = time.Second
)

func importProgress(w io.Writer) func(int64, int) {
	next := time.Now().Add(progressAfter)
	return func(bytes int64, entries int) {
		if now := time.Now(); now.After(next) {
			next = now.Add(progressEvery)
			fmt.Fprintf(w, "importing: %s, %d entries\n", mebibytes(bytes), entries)
		}
	}
}

func verifyProgress(w io.Writer, digest string) func(done, total int64) {
	next := time.Now().Add(progressAfter)
	return func(done, total int64) {
		if now := time.Now(); now.After(next) && total > 0 {
			next = now.Add(progressEvery)
			fmt.Fprintf(w, "verifying %s: %d %%\n", digest, done*100/total)
		}
	}
}

// rootfsRow is an imported root file system as JSON.
type rootfsRow struct {
	rootfs.Rootfs
	Configured bool   `json:"configured"`
	OK         bool   `json:"ok"`
	Problem    string `json:"problem,omitempty"`
}

func (a *app) rootfsList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the imported root file systems", Args: noArgs,
		Long: "List the imported root file systems, without reading them. It also removes what imports that crashed have left.",
		RunE: func(c *cobra.Command, _ []string) error {
			rows, err := a.rootfsRows()
			if err != nil {
				return err
			}
			table := [][]string{{"DIGEST", "ENTRIES", "SIZE", "IMPORTED", "STATE"}}
			for _, r := range rows {
				state := r.Problem
				switch {
				case r.OK && r.Configured:
					state = "configured"
				case r.OK:
					state = "not used"
				}
				table = append(table, []string{r.Digest, fmt.Sprint(r.Entries), mebibytes(r.Bytes), r.Imported.Format(time.RFC3339), state})
			}
			return a.print(c.OutOrStdout(), rows, table)
		},
	}
}

func (a *app) rootfsRows() ([]rootfsRow, error) {
	all, err := rootfs.At(a.layout).List()
	if err != nil {
		return nil, err
	}
	configured, _ := a.configuredRootfs() // doctor says what is wrong with the configuration
	rows := make([]rootfsRow, len(all))
	for i, r := range all {
		rows[i] = rootfsRow{Rootfs: r, Configured: r.Digest == configured, OK: r.Err == nil}
		if r.Err != nil {
			rows[i].Problem = r.Err.Error()
		}
	}
	return rows, nil
}

func (a *app) rootfsVerify() *cobra.Command {
	return &cobra.Command{
		Use: "verify [DIGEST]", Short: "Read imported root file systems in full and compare them with their digests", Args: atMostOneArg("digest"),
		Long: "Read one imported root file system, or all, in full and compare every file with its digest. The beginning of a digest is enough.",
		RunE: func(c *cobra.Command, args []string) error {
			s := rootfs.At(a.layout)
			rows, err := a.rootfsRows()
			if err != nil {
				return err
			}
			only := ""
			if len(args) == 1 {
				if only, err = s.Find(args[0]); err != nil {
					return err
				}
			}
			verified, table, healthy := []rootfsRow{}, [][]string{}, true
			for _, r := range rows {
				if only != "" && r.Digest != only {
					continue
				}
				word := "ok"
				if err := s.Verify(c.Context(), r.Digest, verifyProgress(c.ErrOrStderr(), r.Digest)); err != nil {
					if wire.CodeOf(err) == rootfs.CodeCancelled || c.Context().Err() != nil {
						return err
					}
					word, r.OK, r.Problem, healthy = "FAIL", false, err.Error(), false
				}
				verified = append(verified, r)
				table = append(table, []string{word, r.Digest, r.Problem})
			}
			if err := a.print(c.OutOrStdout(), verified, table); err != nil {
				return err
			}
			if !healthy {
				return errUnhealthy
			}
			return nil
		},
	}
}

func (a *app) rootfsRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove DIGEST", Short: "Remove an imported root file system that nothing uses", Args: oneArg("digest"),
		Long: "Remove an imported root file system. One that broker.toml names, or that a broker or a session uses, is refused. The beginning of a digest is enough.",
		RunE: func(c *cobra.Command, args []string) error {
			s := rootfs.At(a.layout)
			digest, err := s.Find(args[0])
			if err != nil {
				return err
			}
			configured, err := a.configuredRootfs()
			if err != nil {
				return err
			}
			if digest == configured {
				return &wire.Error{Code: rootfs.CodeInUse, Message: "the configuration names " + digest, Advice: "name another one in broker.toml and restart the broker first"}
			}
			if err := s.Remove(digest); err != nil {
				return err
			}
			return a.print(c.OutOrStdout(), map[string]string{"removed": digest}, [][]string{{"removed", digest}})
		},
	}
}

// configuredRootfs returns the digest that broker.toml names; none if there is
// no such file. While it can't be read, nobody knows what is in use.
func (a *app) configuredRootfs() (string, error) {
	if _, err := os.Lstat(a.layout.Etc + "/broker.toml"); os.IsNotExist(err) {
		return "", nil
	}
	config, err := registry.Load(a.layout)
	if err != nil {
		return "", err
	}
	return config.Rootfs.Digest, nil
}
