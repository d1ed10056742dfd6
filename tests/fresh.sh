#!/usr/bin/env bash
# Proves that what the README promises a newcomer holds: in a minimal system made with debootstrap,
# where only `make` was added, `make demo` and `make check` run to their last line from the source
# tarball; in a second one the packages install with what they depend on, and go again.
#
#   tests/fresh.sh TARBALL PACKAGES
#
# FRESH_SUITE and FRESH_MIRROR choose another system than this machine's own. Packages come from
# where this machine gets them: its apt configuration is copied into the new system, which lies in a
# temporary folder and is removed at the end. Needs root and the right to mount.
set -euo pipefail

me=$(realpath "${BASH_SOURCE[0]}")

fail() {
	echo "fresh.sh: $1" >&2
	exit "${2:-70}"
}

# The new system becomes the root, a mount point as a root should be, in namespaces of its own.
enter() { # ROOT COMMAND …
	local root=$1
	shift
	mount --bind "$root" "$root"
	mount -t proc proc "$root/proc"
	mount -t sysfs -o ro sysfs "$root/sys"
	mount --rbind /dev "$root/dev"
	mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm" # with this system's pids come its names
	mkdir -p "$root/old"
	cd "$root"
	pivot_root . old
	umount -l old
	rmdir old
	exec env -i HOME=/root LANG=C.UTF-8 TERM=dumb DEBIAN_FRONTEND=noninteractive \
		PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

in_root() {
	unshare --mount --pid --ipc --fork --kill-child --propagation private -- bash "$me" _enter "$@"
}

own_suite() {
	sed -n 's/^VERSION_CODENAME=//p' /etc/os-release
}

# The first archive that this machine's apt has for its own system.
own_mirror() {
	# shellcheck disable=SC2016 # apt's own variables
	apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
		awk -v suite="$(own_suite)" '$1 == suite { print $2; exit }'
}

make_system() { # ROOT
	local suite=${FRESH_SUITE:-$(own_suite)}
	local mirror=${FRESH_MIRROR:-$(own_mirror)}
	debootstrap --variant=minbase "$suite" "$1" ${mirror:+"$mirror"} \
		>"$dir/debootstrap.log" 2>&1 || {
		tail -n 20 "$dir/debootstrap.log" >&2
		fail "debootstrap could not make $suite"
	}
	if [ "$suite" = "$(own_suite)" ]; then
		rm -rf "$1/etc/apt"
		cp -r --dereference /etc/apt "$1/etc/apt"
		mkdir -p "$1/usr/share/keyrings"
		cp -n /usr/share/keyrings/*.gpg "$1/usr/share/keyrings/" 2>/dev/null || true
	fi
	cp --dereference /etc/resolv.conf /etc/hosts "$1/etc/"
}

say() {
	echo "== $*"
}

if [ "${1:-}" = _enter ]; then
	shift
	enter "$@"
fi

tarball=$(realpath "${1:?which TARBALL?}")
packages=$(realpath "${2:?which folder of PACKAGES?}")
[ "$(id -u)" = 0 ] || fail 'needs root: sudo make fresh' 77
dir=$(mktemp -d "${TMPDIR:-/tmp}/lease-fresh-XXXXXX")
trap 'rm -rf --one-file-system "$dir"' EXIT
trap 'exit 143' INT TERM HUP

say "a minimal ${FRESH_SUITE:-$(own_suite)}"
make_system "$dir/source"
cp -a "$dir/source" "$dir/packages"

mkdir "$dir/source/root/source"
tar -xzf "$tarball" --strip-components=1 -C "$dir/source/root/source"
in_root "$dir/source" sh -c 'apt-get update -qq && apt-get install -y -qq make >/dev/null'
say 'make demo'
in_root "$dir/source" make -C /root/source --no-print-directory demo
say 'make check'
in_root "$dir/source" env LEASE_REQUIRE_SERVICE_TESTS=1 \
	make -C /root/source --no-print-directory check ${TESTS:+TESTS="$TESTS"}

say 'packages'
mkdir "$dir/packages/root/packages"
cp "$packages"/*.deb "$dir/packages/root/packages"
in_root "$dir/packages" sh -euc '
	apt-get update -qq
	apt-get install -y -qq /root/packages/*.deb >/dev/null
	lease-reconciler --check-config
	leasectl --version
	getent passwd lease-reconciler
	apt-get purge -y -qq lease-reconciler leasectl liblease1 liblease-dev >/dev/null
	if getent passwd lease-reconciler || [ -e /etc/lease-reconciler.yaml ]; then
		echo "purging left something"
		exit 1
	fi'
say 'fresh: ok'
