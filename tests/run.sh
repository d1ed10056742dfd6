#!/usr/bin/env bash
# Runs test programs against one private PostgreSQL and counts.
#
#   tests/run.sh PROGRAM…      programs print TAP, as cmocka does with CMOCKA_MESSAGE_OUTPUT=TAP
#
# It prints each failing test with its messages and ends with `N passed, N failed` (and
# `, N skipped`) alone on the last line. A program that crashes, hangs or ends before its last test
# is one failure more. Exit code 1 if anything failed or nothing passed.
#
# Programs get: PGHOST PGPORT PGUSER PGDATABASE of the cluster, LEASE_TEST_CLUSTER (its folder),
# LEASE_BUILD (where the daemon and leasectl are), LEASE_SOURCE (this repository).
# TEST_TIMEOUT (seconds a program, 300), TEST_PROCESSES (programs at once, 2) and TEST_WRAPPER (a
# command that runs each program, as valgrind does) may be set.
#
# It never leaves a process of a test behind, whatever ends it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -z "${LEASE_TEST_CLUSTER:-}" ]; then
	LEASE_CLUSTER_FSYNC=off exec "$here/cluster.sh" with -c log_min_messages=panic \
		bash "$here/run.sh" "$@"
fi

LEASE_SOURCE=$(dirname "$here")
LEASE_BUILD=$(cd "${LEASE_BUILD:-build}" && pwd)
export LEASE_SOURCE LEASE_BUILD
export CMOCKA_MESSAGE_OUTPUT=TAP
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
unset NOTIFY_SOCKET WATCHDOG_USEC WATCHDOG_PID LISTEN_FDS LISTEN_PID JOURNAL_STREAM
unset CREDENTIALS_DIRECTORY CMOCKA_XML_FILE

time_limit=${TEST_TIMEOUT:-300}
at_once=${TEST_PROCESSES:-2}
read -r -a wrapper <<<"${TEST_WRAPPER:-}"
results=$(mktemp -d "${TMPDIR:-/tmp}/lease-results-XXXXXX")
# What a killed program could not remove itself goes with the rest.
export TMPDIR=$results/tmp
mkdir "$TMPDIR"
passed=0 failed=0 skipped=0
declare -A running=()

# `timeout` leads a process group of its own: killing that reaches whatever a test started.
finish() {
	local pid
	trap '' INT TERM HUP
	exec 2>/dev/null
	for pid in "${!running[@]}"; do
		kill -KILL -- "-$pid" 2>/dev/null || true
	done
	rm -rf "$results"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Prints what went wrong in one program's output; the last line: passed failed skipped.
judge() {
	awk -v program="$1" -v status="$2" -v limit="$time_limit" '
		function failure(title) {
			print "not ok: " program ": " title
			printf "%s", messages
			failed++
		}
		# Both TAP dialects of cmocka: "not ok 3 # SKIP name" and "ok 3 - name # SKIP reason".
		/^(not )?ok [0-9]+.*# SKIP/ {
			sub(/^(not )?ok [0-9]+ (- )?/, "")
			sub(/# SKIP */, "")
			print "skipped: " program ": " $0
			printf "%s", messages
			messages = ""; skipped++; ran++
			next
		}
		/^ok [0-9]+/ { messages = ""; passed++; ran++; next }
		# cmocka 1.1 prints a failed test first and its messages, marked with "#", after it.
		/^not ok [0-9]+/ { sub(/^not ok [0-9]+ (- )?/, ""); failure($0); messages = ""; ran++; in_failure = 1; next }
		/^1\.\.[0-9]+/ { planned += substr($0, 4); next }
		/^# ok - / || /^# not ok - / { next }
		in_failure && /^# / { print "    " substr($0, 3); next }
		{ in_failure = 0; messages = messages "    " $0 "\n" }
		END {
			if (status == "timeout")
				failure("did not end within " limit " s (test " ran + 1 " of " planned ")")
			else if (status + 0 > 128)
				failure("died of signal " status - 128 " (test " ran + 1 " of " planned ")")
			else if (status != 0 && failed == 0)
				failure("exit code " status)
			else if (planned == 0 || ran < planned)
				failure("ran " ran + 0 " of " planned + 0 " tests")
			print passed + 0, failed + 0, skipped + 0
		}
	' "$3"
}

start_program() {
	timeout --kill-after=5 "$time_limit" env --default-signal=INT,QUIT -- \
		"${wrapper[@]}" "$1" \
		>"$results/out.$started" 2>&1 </dev/null &
	running[$!]="$started $SECONDS $1"
	started=$((started + 1))
}

# Waits for any one program and prints its verdict in one piece.
finish_program() {
	local pid status=0 number since program verdict counts
	wait -n -p pid "${!running[@]}" 2>/dev/null || status=$?
	read -r number since program <<<"${running[$pid]}"
	# 137 is the last resort of `timeout` as well as a program killed by somebody else.
	if [ "$status" = 124 ] || [ "$status" = 137 ] && [ $((SECONDS - since)) -ge "$time_limit" ]; then
		status=timeout
	fi
	unset "running[$pid]"
	kill -KILL -- "-$pid" 2>/dev/null || true
	program=${program#"$LEASE_BUILD"/}
	program=${program#*tests/}
	verdict=$(judge "$program" "$status" "$results/out.$number")
	counts=${verdict##*$'\n'}
	verdict=${verdict%"$counts"}
	read -r -a counts <<<"$counts"
	echo "  TEST    $program: ${counts[0]} passed, ${counts[1]} failed"
	printf %s "$verdict"
	passed=$((passed + counts[0])) failed=$((failed + counts[1])) skipped=$((skipped + counts[2]))
}

started=0
for program in "$@"; do
	[[ $program = */* ]] || program=./$program
	[ ${#running[@]} -lt "$at_once" ] || finish_program
	start_program "$program"
done
while [ ${#running[@]} -gt 0 ]; do
	finish_program
done

summary="$passed passed, $failed failed"
[ "$skipped" = 0 ] || summary+=", $skipped skipped"
echo "$summary"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
