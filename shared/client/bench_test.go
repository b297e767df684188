package client

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// R82: records per second through a Unix socket, from a peer that has its
// frames ready.
func BenchmarkRecords(b *testing.B) {
	for _, size := range []int{200, 64 << 10} {
		for _, each := range []bool{false, true} {
			name := fmt.Sprintf("%dB/NextBatch", size)
			if each {
				name = fmt.Sprintf("%dB/Next", size)
			}
			b.Run(name, func(b *testing.B) { benchmarkRecords(b, size, each) })
		}
	}
}

func benchmarkRecords(b *testing.B, size int, each bool) {
	n := b.N
	s := bridge(b, SessionConfig{}, func(p *rawPeer) {
		if !p.attached(wire.Attached{NextSequence: 1, LostBefore: 1}) {
			return
		}
		sendMany(b, p.conn, n, size)
		p.drain()
	})
	ctx := context.Background()
	mustAttach(b, s, asWriter)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for got := 0; got < n; {
		if each {
			if _, err := s.Next(ctx); err != nil {
				b.Fatal(err)
			}
			got++
			continue
		}
		batch, err := s.NextBatch(ctx)
		if err != nil && err != io.EOF {
			b.Fatal(err)
		}
		got += len(batch)
	}
	b.StopTimer()
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "records/s")
}

// sendMany sends n records in frames of about 256 KiB.
func sendMany(b *testing.B, conn *net.UnixConn, n, size int) {
	batch := max(1, wire.MaxFragment/size)
	data := repeat(size)
	m := wire.Records{Records: make([]wire.Record, 0, batch)}
	var payload, frame []byte
	for sequence := uint64(1); sequence <= uint64(n); {
		m.Records = m.Records[:0]
		for len(m.Records) < batch && sequence <= uint64(n) {
			m.Records = append(m.Records, wire.Record{Sequence: sequence, Stream: wire.StreamStdout, Data: data})
			sequence++
		}
		payload = wire.AppendRecords(payload[:0], m)
		frame = wire.AppendFrame(frame[:0], payload)
		if _, err := conn.Write(frame); err != nil {
			b.Error(err)
			return
		}
	}
}
