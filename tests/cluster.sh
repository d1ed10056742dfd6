#!/usr/bin/env bash
# A private PostgreSQL in one folder, on a Unix socket, for the tests, the demo and the bench.
#
#   cluster.sh start DIR [-c option=value …]   make it (or start what is there) and wait for it
#   cluster.sh stop DIR [fast|immediate]       leaves no process; the caller removes DIR
#   cluster.sh restart DIR [fast|immediate]
#   cluster.sh standby DIR PRIMARY [-c option=value …]
#                                              a copy of the cluster in PRIMARY that follows it
#   cluster.sh promote DIR                     the standby becomes a primary
#   cluster.sh env DIR                         prints lines for the shell: export PGHOST=…
#   cluster.sh with [-c option=value …] COMMAND [ARGUMENT …]
#                                              a cluster for as long as the command runs
#   cluster.sh bindir                          where the server's programs are
#
# LEASE_CLUSTER_FSYNC=off (at the first start) trades safety against power loss for speed.
# LEASE_CLUSTER_BINDIR picks another server than the newest one. LEASE_CLUSTER_PRELOAD names a library
# that the server, and no other program of this script, is started with (LD_PRELOAD).
#
# It never touches a server, folder or port of anybody else: no TCP, no fixed path. Run by root it
# starts the server as `postgres` (or `nobody`), since PostgreSQL refuses to run as root.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wait_seconds=60

fail() {
	echo "cluster.sh: $1" >&2
	exit "${2:-70}"
}

find_bindir() {
	local candidate
	for candidate in "${LEASE_CLUSTER_BINDIR:-}" \
		$(printf '%s\n' /usr/lib/postgresql/*/bin /usr/pgsql-*/bin | sort -rV) \
		"$(pg_config --bindir 2>/dev/null || true)" \
		"$(dirname "$(command -v initdb 2>/dev/null || echo /none)")"; do
		if [ -n "$candidate" ] && [ -x "$candidate/initdb" ] && [ -x "$candidate/postgres" ]; then
			echo "$candidate"
			return
		fi
	done
	fail 'no PostgreSQL server found: run tests/prepare.sh, which installs what is missing' 69
}

# Runs a command as the server's user, from a folder that this user can enter.
as_server() {
	if [ "$(id -u)" = 0 ]; then
		(cd / && setpriv --reuid="$server_user" --regid="$server_group" --clear-groups -- "$@")
	else
		(cd / && "$@")
	fi
}

choose_user() {
	server_user=$(id -un)
	if [ "$(id -u)" = 0 ]; then
		server_user=postgres
		id postgres >/dev/null 2>&1 || server_user=nobody
	fi
	server_group=$(id -g "$server_user")
}

use_folder() {
	[ -n "${1:-}" ] ||
		fail 'which DIR? usage: cluster.sh start|stop|restart|standby|promote|env DIR' 64
	dir=$(realpath -m "$1")
	data=$dir/data
	choose_user
}

# Unix socket paths end at 107 bytes; a deep folder gets a short one in /tmp for the socket, always
# the same one, so that clients find the server again after a restart.
socket_folder() {
	if [ "$(printf %s "$dir/.s.PGSQL.5432.lock" | wc -c)" -le 107 ]; then
		echo "$dir"
	else
		echo "/tmp/lease-socket-$(printf %s "$dir" | sha256sum | cut -c 1-16)"
	fi
}

make_socket_folder() {
	local socket
	socket=$(socket_folder)
	[ "$socket" != "$dir" ] || return 0
	as_server mkdir -p -m 0711 "$socket"
	as_server test -O "$socket" || fail "$socket belongs to somebody else: use a shorter DIR" 73
}

make_folder() {
	mkdir -p "$dir"
	if [ "$(id -u)" = 0 ]; then
		chown "$server_user" "$dir"
		chmod 0711 "$dir"
	fi
	as_server test -w "$dir" || fail "user $server_user cannot write to $dir: choose a folder \
below /tmp, or let that user pass through its parents" 73
}

make_data() {
	make_folder
	# --no-sync: the files reach the disk on their own; only a power loss right now could hurt.
	as_server "$bindir/initdb" --pgdata="$data" --username=postgres --auth=trust --encoding=UTF8 \
		--locale=C --no-sync >"$dir/initdb.log" 2>&1 ||
		fail "initdb failed: $(tail -n 3 "$dir/initdb.log" | tr '\n' ' ')" 73
	{
		echo "include_if_exists 'cluster.conf'"
		if [ "${LEASE_CLUSTER_FSYNC:-on}" = off ]; then
			printf '%s = off\n' fsync full_page_writes
		fi
	} | as_server tee -a "$data/postgresql.conf" >/dev/null
}

# Shared memory in files of the data folder: a killed server leaves nothing in /dev/shm.
write_settings() {
	as_server tee "$data/cluster.conf" >/dev/null <<-END
		listen_addresses = ''
		port = 5432
		unix_socket_directories = '$(socket_folder | sed "s/'/''/g")'
		max_connections = 120
		dynamic_shared_memory_type = mmap
		timezone = 'UTC'
		log_line_prefix = '%m [%p] %d %a '
		include_if_exists 'options.conf'
	END
}

# The options stay with the cluster: a later start without options finds them again.
write_options() {
	local lines=''
	while [ $# -gt 0 ]; do
		if [ "$1" != -c ] || [[ ${2:-} != *=* ]]; then
			fail "'$1 ${2:-}': options are -c name=value" 64
		fi
		lines+="${2%%=*} = '$(printf %s "${2#*=}" | sed "s/'/''/g")'"$'\n'
		shift 2
	done
	printf %s "$lines" | as_server tee "$data/options.conf" >/dev/null
}

# The server's processes have its data folder as their working folder.
server_processes() {
	find /proc -mindepth 2 -maxdepth 2 -path '/proc/[0-9]*/cwd' -printf '%h\t%l\n' 2>/dev/null |
		DATA=$data awk -F '\t' '$2 == ENVIRON["DATA"] { sub("^/proc/", "", $1); print $1 }'
}

# What a server leaves that was killed by SIGKILL: a lock that may name a process not yet reaped,
# and one System V segment that only its own next start would remove. Called when none runs.
forget_dead_server() {
	local segment
	as_server test -e "$data/postmaster.pid" || return 0
	segment=$(as_server sed -n '7s/.* //p' "$data/postmaster.pid")
	if [ -n "$segment" ] && command -v ipcrm >/dev/null; then
		as_server ipcrm -m "$segment" 2>/dev/null || true
	fi
	as_server rm -f "$data/postmaster.pid" "$(socket_folder)/.s.PGSQL.5432.lock"
}

start() {
	local bindir deadline=$((SECONDS + 2))
	bindir=$(find_bindir)
	[ -d "$data" ] || make_data
	# A server that was killed just now may still be ending.
	while [ -n "$(server_processes)" ]; do
		[ $SECONDS -lt $deadline ] || fail "a server runs in $dir already: stop it first" 73
		sleep 0.02
	done
	forget_dead_server
	make_socket_folder
	write_settings
	[ $# = 0 ] || write_options "$@"
	as_server env ${LEASE_CLUSTER_PRELOAD:+LD_PRELOAD="$LEASE_CLUSTER_PRELOAD"} \
		"$bindir/pg_ctl" start -D "$data" -l "$dir/log" -w -t "$wait_seconds" \
		>"$dir/pg_ctl.log" 2>&1 </dev/null ||
		fail "the server did not start: $(tail -q -n 3 "$dir/pg_ctl.log" "$dir/log" 2>/dev/null |
			tr '\n' ' ')"
}

# The name under which it follows is its folder's: for synchronous_standby_names.
standby() {
	local bindir primary
	bindir=$(find_bindir)
	primary=$(dir=$(realpath -m "${1:-}") socket_folder)
	shift
	[ ! -e "$data" ] || fail "there is a cluster in $dir already" 73
	make_folder
	as_server "$bindir/pg_basebackup" --pgdata="$data" --checkpoint=fast --no-sync \
		--write-recovery-conf --dbname="host=$primary port=5432 user=postgres \
application_name=$(basename "$dir")" >"$dir/pg_basebackup.log" 2>&1 </dev/null ||
		fail "pg_basebackup failed: $(tail -n 3 "$dir/pg_basebackup.log" | tr '\n' ' ')"
	start "$@"
}

promote() {
	local bindir
	bindir=$(find_bindir)
	as_server "$bindir/pg_ctl" promote -D "$data" -w -t "$wait_seconds" >"$dir/pg_ctl.log" 2>&1 ||
		fail "the standby in $dir was not promoted: $(tail -n 3 "$dir/log" | tr '\n' ' ')"
}

stop() {
	local mode=${1:-fast} bindir pid deadline
	case $mode in fast | immediate) ;; *) fail "'$mode': stop fast or immediate" 64 ;; esac
	[ -d "$data" ] || return 0
	bindir=$(find_bindir)
	if as_server "$bindir/pg_ctl" status -D "$data" >/dev/null 2>&1; then
		as_server "$bindir/pg_ctl" stop -D "$data" -m "$mode" -w -t "$wait_seconds" >/dev/null 2>&1 ||
			as_server "$bindir/pg_ctl" stop -D "$data" -m immediate -w -t 10 >/dev/null 2>&1 || true
	fi
	# After a SIGKILL of the server its children need a moment to notice; no one outlives this.
	deadline=$((SECONDS + 5))
	while pid=$(server_processes) && [ -n "$pid" ]; do
		# shellcheck disable=SC2086 # a list of numbers
		[ $SECONDS -lt $deadline ] || kill -KILL $pid 2>/dev/null || true
		[ $SECONDS -lt $((deadline + 5)) ] || fail "processes of $dir do not end: $pid"
		sleep 0.02
	done
	forget_dead_server
	if [ "$(socket_folder)" != "$dir" ]; then
		rm -rf "$(socket_folder)"
	fi
}

print_env() {
	[ -d "$data" ] || fail "there is no cluster in $dir: start it first" 66
	printf 'export PGHOST=%q PGPORT=5432 PGUSER=postgres PGDATABASE=postgres LEASE_TEST_CLUSTER=%q\n' \
		"$(socket_folder)" "$dir"
}

# The command runs in the background so that a signal is handled while it runs, not after.
with_cluster() {
	local options=() status=0
	while [ "${1:-}" = -c ]; do
		options+=("$1" "${2:-}")
		shift 2
	done
	[ $# -gt 0 ] || fail 'which command? usage: cluster.sh with [-c option=value …] COMMAND …' 64
	with_dir=$(mktemp -d "${TMPDIR:-/tmp}/lease-cluster-XXXXXX")
	command_pid=
	trap 'trap "" INT TERM HUP; [ -z "$command_pid" ] || { kill -TERM "$command_pid" 2>/dev/null || true; wait "$command_pid" || true; }; "$here/cluster.sh" stop "$with_dir" immediate || true; rm -rf "$with_dir"' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	chmod 0711 "$with_dir"
	"$here/cluster.sh" start "$with_dir" ${options[@]+"${options[@]}"}
	eval "$("$here/cluster.sh" env "$with_dir")"
	# A shell's background command would ignore SIGINT, and so would everything below it.
	env --default-signal=INT,QUIT -- "$@" <&0 &
	command_pid=$!
	wait "$command_pid" || status=$?
	command_pid=
	exit "$status"
}

# Settings of the caller's own PostgreSQL must not reach this one.
action=${1:-}
[ $# = 0 ] || shift
if [ "$action" != with ]; then
	# shellcheck disable=SC2086 # names, one word each
	unset ${!PG*}
	export LC_ALL=C
fi
case $action in
start) use_folder "${1:-}"; shift; start "$@" ;;
stop) use_folder "${1:-}"; stop "${2:-fast}" ;;
restart) use_folder "${1:-}"; stop "${2:-fast}"; start ;;
standby) use_folder "${1:-}"; shift; standby "$@" ;;
promote) use_folder "${1:-}"; promote ;;
env) use_folder "${1:-}"; print_env ;;
with) with_cluster "$@" ;;
bindir) find_bindir ;;
*) fail 'usage: cluster.sh start|stop|restart|standby|promote|env DIR, with COMMAND, bindir' 64 ;;
esac
