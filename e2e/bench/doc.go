// Package bench measures the product beside what a user would otherwise have,
// in the same run on the same work. Figures are ratios and rates with their
// spread; nothing here passes or fails by time.
package bench
