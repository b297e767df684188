package wire

import (
	"bytes"
	"fmt"
	"testing"
)

var benchmarkSizes = []int{200, 64 << 10}

// batch fills about one frame of 256 KiB.
func batch(size int) Records {
	m := Records{}
	for i := range max(1, MaxFragment/size) {
		m.Records = append(m.Records, Record{Sequence: 1<<33 + uint64(i), Stream: StreamStdout, Data: bytes.Repeat([]byte("x"), size)})
	}
	return m
}

func BenchmarkAppendRecords(b *testing.B) {
	for _, size := range benchmarkSizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			m := batch(size)
			buf := AppendRecords(nil, m)
			b.SetBytes(int64(len(buf)))
			b.ReportAllocs()
			for b.Loop() {
				buf = AppendRecords(buf[:0], m)
			}
			reportRecords(b, len(m.Records))
		})
	}
}

func BenchmarkDecodeRecords(b *testing.B) {
	for _, size := range benchmarkSizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			m := batch(size)
			buf := AppendRecords(nil, m)
			b.SetBytes(int64(len(buf)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := DecodeRecords(buf); err != nil {
					b.Fatal(err)
				}
			}
			reportRecords(b, len(m.Records))
		})
	}
}

func reportRecords(b *testing.B, each int) {
	b.ReportMetric(float64(b.N)*float64(each)/b.Elapsed().Seconds(), "records/s")
}

func benchmarkInput(size int) Input {
	return Input{Type: "input", ID: 1, Lease: sampleLease, InputID: "g1-req_1", Data: bytes.Repeat([]byte("x"), size)}
}

func BenchmarkEncodeInput(b *testing.B) {
	for _, size := range benchmarkSizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			m := benchmarkInput(size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				var err error
				if buf, err = AppendMessageFrame(buf[:0], m, MaxBridgeFrame); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecodeInput(b *testing.B) {
	for _, size := range benchmarkSizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			payload, err := Encode(benchmarkInput(size))
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Decode(BridgeRequests, payload); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEncodeAccepted(b *testing.B) {
	b.ReportAllocs()
	var buf []byte
	for b.Loop() {
		buf, _ = AppendMessage(buf[:0], Accepted{Type: "accepted", ID: 1, InputID: "g1-req_1"})
	}
}
