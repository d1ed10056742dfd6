#!/usr/bin/env bash
# Makes the Debian packages from a source tarball, in FOLDER, and has lintian look at them.
#
#   config/package.sh TARBALL FOLDER VERSION
#
# The maintainer's address is $DEBEMAIL. An error that lintian finds is a failure; without lintian
# it says so. The build runs in a copy of the source: nothing is written beside FOLDER.
set -euo pipefail

tarball=$(realpath "$1")
folder=$(realpath -m "$2")
version=$3
source=$folder/lease-reconciler-$version

rm -rf "$folder"
mkdir -p "$folder"
tar -xzf "$tarball" -C "$folder"
date=$(date --utc --date="@$(stat --format=%Y "$source/CHANGELOG.md")" -R)
cp -r "$source/config/debian" "$source/debian"
find "$source/debian" -type f -exec sed -i -e "s|@version@|$version|g" -e "s|@date@|$date|g" \
	-e "s|@maintainer@|${DEBEMAIL:-lease-reconciler@example.org}|g" {} +

# Settings of the make that called this are not for the packages.
export DEB_BUILD_OPTIONS=${DEB_BUILD_OPTIONS:-noautodbgsym}
unset MAKEFLAGS MFLAGS MAKELEVEL BUILD DESTDIR PREFIX SANITIZE WERROR TESTS
if ! (cd "$source" && dpkg-buildpackage --build=binary --no-sign) >"$folder/build.log" 2>&1; then
	tail -n 40 "$folder/build.log" >&2
	echo "package.sh: the packages could not be built; all of it is in $folder/build.log" >&2
	exit 70
fi
rm -rf "$source"
if command -v lintian >/dev/null; then
	lintian --allow-root --fail-on error --tag-display-limit 0 "$folder"/*.changes
else
	echo 'package.sh: lintian is not installed, the packages were not looked at'
fi
ls "$folder"/*.deb
