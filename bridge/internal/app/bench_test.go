package app_test

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// BenchmarkRecords measures pipe, spool, index, socket and decoding together:
// a writer that takes every record and acknowledges as it goes.
func BenchmarkRecords(b *testing.B) {
	for _, size := range []int{200, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			r := rig.New(b, rig.Options{})
			bridge := r.Start()
			c := r.Writer()
			b.SetBytes(int64(size))
			b.ResetTimer()
			go feed(r.AgentStdout, size, b.N)
			var got, acked, id uint64 = 0, 0, 1 << 20
			for got < uint64(b.N) {
				m, err := c.Conn.ReadMessage(wire.BridgeReplies)
				if err != nil {
					b.Fatal(err)
				}
				records, ok := m.(wire.Records)
				if !ok {
					continue
				}
				last := records.Records[len(records.Records)-1]
				got = last.Sequence
				if got-acked > uint64(16<<20/size) {
					id, acked = id+1, got
					c.Send(wire.Ack{ID: id, Lease: c.Attached.Lease, Cursor: wire.Cursor{Epoch: r.Epoch, Sequence: got}})
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
			if err := bridge.Stop(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// feed writes n records of the given size, many in one write as far as they
// fit into a pipe.
func feed(w *os.File, size, n int) {
	defer w.Close()
	line := append(bytes.Repeat([]byte("x"), size-1), '\n')
	batch := bytes.Repeat(line, max(1, 256<<10/size))
	for per := len(batch) / size; n > 0; n -= per {
		if _, err := w.Write(batch[:min(n, per)*size]); err != nil {
			return
		}
	}
}
