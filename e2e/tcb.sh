#!/usr/bin/env bash
# Reports what runs as root: the lines of our own that are linked into the
# broker, and the modules that come with them.
set -euo pipefail
cd "$(dirname "$0")/.."
module=$(go list -m)
package=./broker/cmd/paseo-sandbox-broker
echo "Lines of our own linked into paseo-sandbox-broker (without tests, blank lines and comment lines):"
total=0
while read -r import dir; do
  lines=$(cat $(go list -f '{{range .GoFiles}}{{$.Dir}}/{{.}} {{end}}' "$import") | grep -cvE '^\s*(//.*)?$')
  total=$((total + lines))
  printf '%7d  %s\n' "$lines" "${import#"$module"/}"
done < <(go list -deps -f '{{if not .Standard}}{{.ImportPath}} {{.Dir}}{{end}}' "$package" | grep "^$module")
printf '%7d  in all\n' "$total"
echo "Modules linked in:"
direct=$(go list -m -f '{{if not .Indirect}}{{.Path}}{{end}}' all)
go list -deps -f '{{with .Module}}{{.Path}} {{.Version}}{{end}}' "$package" | sort -u | grep -v "^$module" |
  while read -r path version; do
    kind=indirect
    grep -qx "$path" <<< "$direct" && kind=direct
    printf '  %-8s %s %s\n' "$kind" "$path" "$version"
  done
