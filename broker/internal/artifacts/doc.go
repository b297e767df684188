// Package artifacts opens what the broker executes and mounts: runsc, the
// rootfs and the bridge, each checked in full before it is used (R16, R17).
package artifacts
