// Package setup brings artifacts into a cache: it runs the stages of a recipe,
// keeps the finished ones across an interruption, writes the manifest, and puts
// the result in place with one rename. What the stages do is the recipe's
// business.
package setup
