package spool

import "slices"

// Range is a part of a spool, from From up to To.
type Range struct {
	From, To int64
}

// Holes returns the whole pages of a range that contain no byte of the kept
// ranges. Keep may be in any order.
func Holes(r Range, keep []Range, pageSize int64) []Range {
	from := (r.From + pageSize - 1) / pageSize * pageSize
	to := r.To / pageSize * pageSize
	keep = slices.Clone(keep)
	slices.SortFunc(keep, func(a, b Range) int { return int(min(1, max(-1, a.From-b.From))) })
	var holes []Range
	for _, k := range keep {
		if k.To <= from || k.From >= to {
			continue
		}
		if end := k.From / pageSize * pageSize; end > from {
			holes = append(holes, Range{from, end})
		}
		from = max(from, (k.To+pageSize-1)/pageSize*pageSize)
	}
	if from < to {
		holes = append(holes, Range{from, to})
	}
	return holes
}
