#!/usr/bin/env bash
# Puts the packages that the comparison runs against into a folder, in the versions of the lock file.
#
#   install.sh FOLDER
#
# Nothing is written beside the sources, no package's own install script runs, and a folder that has
# these versions already is left alone. Ends with 69 when npm cannot get them.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:?which FOLDER?}

mkdir -p "$folder"
cp "$here/rescue.js" "$folder/"
cmp -s "$here/package-lock.json" "$folder/installed.json" && exit 0
rm -f "$folder/installed.json"
cp "$here/package.json" "$here/package-lock.json" "$folder/"
if ! (cd "$folder" && npm ci --ignore-scripts --no-audit --no-fund --fetch-timeout=60000 \
	--fetch-retries=1) >"$folder/npm.log" 2>&1 </dev/null; then
	echo "bench-peers: npm cannot get the packages to compare with: $(sed -nE \
		's/^npm (ERR!|error) (code )?//p' "$folder/npm.log" | head -n 1) (all of it: $folder/npm.log)" >&2
	exit 69
fi
cp "$here/package-lock.json" "$folder/installed.json"
