#!/usr/bin/env bash
# Installs what building and testing need and this machine lacks; says nothing if all is there.
#
#   prepare.sh             for `make`, `make check` and the like
#   prepare.sh packages    for `make deb`, too
#   prepare.sh fresh       for `make fresh`, too
#   prepare.sh peers       for `make bench-peers`, too
#   prepare.sh hardening   for `make fuzz`, `make valgrind`, `make coverage` and `make lint`, too
#
# Each need is tried, not looked up: a library built by hand counts as well as a package. On Debian
# and Ubuntu the missing packages come by apt-get, as root or by sudo; otherwise it prints the one
# line to run and ends with 69 (nothing was changed then).
#
# It never leaves a PostgreSQL server or a pgbouncer running or configured that was not there before.
# pgbouncer's package starts and enables a service: where it is missing, its program alone is taken
# out of the package and put into LEASE_BUILD/tools, where the tests look first.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=${LEASE_BUILD:-build}/tools

compiles() {
	printf '%s\n' "$@" 'int main(void) { return 0; }' | cc -xc - -o /dev/null 2>/dev/null
}
compiles_fuzzer() {
	echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return d && n < 0; }' |
		clang -fsanitize=fuzzer,address -xc - -o /dev/null 2>/dev/null
}
known() {
	pkg-config --exists "$1" 2>/dev/null
}

# shellcheck disable=SC2016 # evaluated later
# One need a line: Debian package, then the command that succeeds when it is there.
needs=(
	'build-essential compiles "#include <stdio.h>" && command -v make ar'
	'pkg-config command -v pkg-config'
	'libpq-dev known libpq'
	'libssl-dev known libcrypto'
	'zlib1g-dev known zlib'
	'libev-dev compiles "#include <ev.h>"'
	'libyaml-dev known yaml-0.1'
	'libsystemd-dev known libsystemd'
	'libcmocka-dev known cmocka'
	'spin spin -V | grep -q "^Spin Version"'
	'libfaketime ls /usr/lib/*/faketime/libfaketime.so.1'
	'postgresql bash "$here/cluster.sh" bindir'
	'pgbouncer PATH=$tools:$PATH:/usr/local/sbin:/usr/sbin pgbouncer --version'
	'systemd test -x /lib/systemd/systemd && command -v systemd-analyze'
	'procps test -x /bin/kill'
	'iproute2 command -v ip || test -x /sbin/ip'
)
# shellcheck disable=SC2016
case ${1:-} in
packages | fresh)
	needs+=(
		'debhelper command -v dh dpkg-buildpackage'
		'lintian command -v lintian'
	)
	;;&
hardening)
	needs+=(
		'clang command -v clang'
		'libclang-rt-dev compiles_fuzzer'
		'valgrind command -v valgrind'
		'gcovr command -v gcovr'
		'cppcheck command -v cppcheck'
		'clang-tidy command -v clang-tidy'
		'clang-format command -v clang-format'
		'shellcheck command -v shellcheck'
	)
	;;
fresh) needs+=('debootstrap command -v debootstrap') ;;
peers)
	needs+=(
		'nodejs node -e "process.exit(Number(parseInt(process.versions.node) < 20))"'
		'npm command -v npm'
	)
	;;
esac

find_missing() {
	local need
	missing=()
	for need in "${needs[@]}"; do
		eval "${need#* }" >/dev/null 2>&1 || missing+=("${need%% *}")
	done
}

fail() {
	echo "prepare.sh: $*" >&2
	exit 69
}

# The libraries that a package needs, under the names that they have here.
libraries_of() {
	apt-cache depends "$1" | awk '$1 == "Depends:" && $2 ~ /^lib/ { print $2 }'
}

# The server's package would make and start a cluster of its own: this setting is read while it is
# installed, and goes away again, so that a later installation by the owner is a normal one.
install_packages() {
	local log package settings='' packages=()
	log=$(mktemp)
	if [[ " $* " = *' postgresql '* ]]; then
		mkdir -p /etc/postgresql-common/createcluster.d
		settings=/etc/postgresql-common/createcluster.d/zz-no-main-cluster.conf
		echo 'create_main_cluster = false' >"$settings"
	fi
	# shellcheck disable=SC2064 # the values of now
	trap "rm -f '$log' $settings" EXIT
	export DEBIAN_FRONTEND=noninteractive
	apt-get update >"$log" 2>&1 || true
	for package in "$@"; do
		if [ "$package" = pgbouncer ]; then
			mapfile -t -O ${#packages[@]} packages < <(libraries_of pgbouncer)
		else
			packages+=("$package")
		fi
	done
	apt-get install -y --no-install-recommends "${packages[@]}" >>"$log" 2>&1 </dev/null || {
		tail -n 5 "$log" >&2
		fail "apt-get could not install: $*"
	}
}

# As the user who builds, so that the build folder stays that user's.
take_pgbouncer() (
	folder=$(mktemp -d)
	trap 'rm -rf "$folder"' EXIT
	mkdir -p "$tools"
	tools=$(cd "$tools" && pwd)
	cd "$folder"
	if ! { apt-get download pgbouncer && dpkg-deb --extract pgbouncer_*.deb . &&
		cp "$(find usr -path '*bin/pgbouncer')" "$tools/pgbouncer"; } >log 2>&1; then
		tail -n 5 log >&2
		return 1
	fi
)
lacks_pgbouncer() {
	[[ " ${missing[*]} " = *' pgbouncer '* ]]
}

if [ "${1:-}" = --install ]; then
	shift
	install_packages "$@"
	exit 0
fi

find_missing
[ ${#missing[@]} -gt 0 ] || exit 0

command -v apt-get >/dev/null || fail "missing, and there is no apt-get here: install what your \
system calls these Debian packages: ${missing[*]}"
# With its libraries there it takes no root.
if lacks_pgbouncer && take_pgbouncer 2>/dev/null; then
	find_missing
	[ ${#missing[@]} -gt 0 ] || exit 0
fi
by_hand="sudo bash '$here/prepare.sh' --install ${missing[*]}"
if [ "$(id -u)" = 0 ]; then
	as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
	as_root=(sudo -n)
elif command -v sudo >/dev/null && [ -t 0 ] && [ -t 2 ]; then
	as_root=(sudo)
else
	fail "missing: ${missing[*]}. Run this once: $by_hand"
fi
echo "installing: ${missing[*]}"
${as_root[@]+"${as_root[@]}"} bash "$here/prepare.sh" --install "${missing[@]}" ||
	fail "run this by hand to see more: sudo apt-get install -y ${missing[*]}"
! lacks_pgbouncer || take_pgbouncer || fail 'apt-get could not download pgbouncer'
wanted=${missing[*]}
find_missing
[ ${#missing[@]} = 0 ] || fail "installed $wanted, and yet not usable: ${missing[*]/#nodejs/nodejs (20 or newer is needed)}"
