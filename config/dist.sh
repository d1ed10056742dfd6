#!/usr/bin/env bash
# Packs the source as FOLDER/lease-reconciler-VERSION.tar.gz: what git knows of, as it is now; the
# same source gives the same bytes. Without git everything but what was built (FOLDER) goes in.
#
#   config/dist.sh FOLDER VERSION
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(realpath -m "$1")
name=lease-reconciler-$2

list_files() {
	if [ -e .git ]; then
		git ls-files -z
	else
		find . -path "./${folder#"$PWD"/}" -prune -o ! -type d -printf '%P\0'
	fi
}

changed_at() {
	if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
		echo "$SOURCE_DATE_EPOCH"
	elif [ -e .git ]; then
		git log -1 --format=%ct
	else
		stat --format=%Y CHANGELOG.md
	fi
}

mkdir -p "$folder"
list_files | sort -z | tar --create --null --no-recursion --files-from=- --transform="s,^,$name/," \
	--owner=0 --group=0 --numeric-owner --mode=go=u-w --mtime="@$(changed_at)" |
	gzip -9n >"$folder/$name.tar.gz.new"
mv "$folder/$name.tar.gz.new" "$folder/$name.tar.gz"
echo "$folder/$name.tar.gz"
