#!/usr/bin/env bash
# The demo: a worker is killed in mid-run, another is stopped past its lease and continued; the
# daemon closes their attempts, other workers finish the runs. Everything is real: PostgreSQL, the
# daemon, leasectl, the workers, the signals.
#
# `make demo` builds what is needed and runs it. By hand: LEASE_BUILD=build bash examples/demo.sh
#
# What it promises: the last line is `demo: ok …` (exit 0) or `demo: FAILED …` (exit 1); nothing is
# left behind, however it ends; several at one time do not see each other. It waits for conditions,
# never for a time to pass.
set -Eeuo pipefail

source_folder=${LEASE_SOURCE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}
build_folder=${LEASE_BUILD:-$source_folder/build}
[[ $build_folder = /* ]] || build_folder=$PWD/$build_folder
cluster=$source_folder/tests/cluster.sh

runs=6
workers=3
ttl=3s          # of a lease
step_time=30ms  # 100 steps a run
limit_seconds=120 # it takes about 25; a machine that is busy with other things gets more

folder=
daemon_pid=
declare -A worker_pid=()
verdict='FAILED it ended before its end'
narrated=
partial_line=
ending=no
started=$EPOCHREALTIME

# -- how it ends ----------------------------------------------------------------------------------

fail() {
	verdict="FAILED $1"
	exit 1
}

# SIGKILL also ends a stopped process. `wait` swallows the shell's own words about it.
kill_process() {
	kill -KILL "$1" 2>/dev/null || true
	wait "$1" 2>/dev/null || true
}

clean_up() {
	local status=$? name
	ending=yes
	trap '' INT TERM HUP PIPE
	set +e
	for name in "${!worker_pid[@]}"; do
		kill_process "${worker_pid[$name]}"
	done
	[ -z "$daemon_pid" ] || kill_process "$daemon_pid"
	if [ -n "$folder" ]; then
		drain
		[ ! -d "$folder/cluster" ] || bash "$cluster" stop "$folder/cluster" immediate
		rm -rf "$folder"
	fi
	echo "demo: $verdict" 2>/dev/null
	[[ $verdict = ok* && $status = 0 ]] && exit 0
	exit 1
}

trap clean_up EXIT
trap 'fail "interrupted"' INT TERM HUP PIPE
trap 'verdict="FAILED line $LINENO: $BASH_COMMAND"' ERR

# -- telling what happens ---------------------------------------------------------------------------

# tell WHO WHAT: one line, with the seconds since the start.
tell() {
	local microseconds=$((${EPOCHREALTIME/[.,]/} - ${started/[.,]/}))
	printf '%3d.%d s  %-9s %s\n' $((microseconds / 1000000)) $((microseconds / 100000 % 10)) \
		"$1" "$2" 2>/dev/null || [ "$ending" = yes ] || fail 'nobody reads'
}

# A line of a worker's ("worker-1 claimed run-1 attempt 1") or of the daemon's ("2026-01-31T…Z info
# demo: attempt 1 of run …"), without what each of them has in common.
narrate() {
	local line=$1
	narrated+=$line$'\n'
	case $line in
	worker-*' works on '*) ;;
	worker-*) tell "${line%% *}" "${line#* }" ;;
	*)
		[[ $line != 2*Z' '[a-z]*' '* ]] || line=${line#* }
		line=${line#info }
		line=${line#demo: }
		[[ $line != 'connected to '*,* ]] || line="connected, ${line##*, }"
		tell daemon "${line/run run-/run-}"
		;;
	esac
}

# The processes append their lines to one file; what is new in it is told. The end of the file may
# be the middle of a line that is being written.
drain() {
	local line
	while IFS= read -r line <&3; do
		narrate "$partial_line$line"
		partial_line=
	done
	partial_line+=$line
}

# -- looking and waiting ----------------------------------------------------------------------------

sql() {
	"$psql" -XAtq -v ON_ERROR_STOP=1 -F ' ' -c "$1"
}

check_time() {
	[ $SECONDS -lt $limit_seconds ] || fail "after $limit_seconds s still waiting for $1"
	kill -0 "$daemon_pid" 2>/dev/null || fail "the daemon ended while waiting for $1"
}

# wait_sql WHAT QUERY: until the query answers with a line that is not empty; kept in $answer.
wait_sql() {
	while drain; answer=$(sql "$2") || fail "no answer while waiting for $1"; [ -z "$answer" ]; do
		check_time "$1"
		sleep 0.05
	done
	drain
}

# wait_line WHAT PATTERN: until a line that fits was told.
wait_line() {
	# shellcheck disable=SC2053 # it is a pattern
	while drain; [[ $narrated != $2 ]]; do
		check_time "$1"
		sleep 0.05
	done
}

# An attempt in mid-run: it has been renewed (the heartbeat is later than the start) and is not
# close to its end (a run takes 3 s). Nothing of the worker in $1.
in_mid_run() {
	echo "SELECT split_part(owner, ':', 1), run_id, attempt_no FROM lease.run_attempts
	       WHERE finished_at IS NULL AND heartbeat_at > started_at
	         AND started_at > clock_timestamp() - interval '2.5 s' AND owner NOT LIKE '$1:%'
	       ORDER BY started_at LIMIT 1"
}

# -- the parts --------------------------------------------------------------------------------------

# A value in a conninfo string in a YAML scalar, each with its own quotes.
conninfo_value() {
	local quote="'" value=${1//\\/\\\\}
	value=$quote${value//$quote/\\$quote}$quote
	printf %s "${value//$quote/$quote$quote}"
}

start_database() {
	tell demo 'starts a private PostgreSQL'
	bash "$cluster" start "$folder/cluster" || fail 'PostgreSQL did not start'
	eval "$(bash "$cluster" env "$folder/cluster")"
	psql=$(bash "$cluster" bindir)/psql
	[ -x "$psql" ] || psql=psql
	"$build_folder/leasectl" migrate >"$folder/migrate" 2>&1 ||
		fail "leasectl migrate: $(tail -n 1 "$folder/migrate")"
	sql "CREATE ROLE demo_worker LOGIN IN ROLE lease_worker;
	     CREATE ROLE demo_reconciler LOGIN IN ROLE lease_reconciler"
	tell demo "leasectl migrate: schema lease, version $(sql 'SELECT max(version) FROM lease.schema_migrations')"
}

start_daemon() {
	cat >"$folder/lease-reconciler.yaml" <<-END
		interval: 1s
		policy: requeue
		max_lease_losses: 3
		amnesty_after: 1s
		amnesty_grace: 3s
		log:
		  target: stderr
		databases:
		  - name: demo
		    conninfo: 'host=$(conninfo_value "$PGHOST") port=$PGPORT dbname=$PGDATABASE user=demo_reconciler'
	END
	"$build_folder/lease-reconciler" --config "$folder/lease-reconciler.yaml" \
		>>"$folder/events" 2>&1 </dev/null 3<&- &
	daemon_pid=$!
	tell demo "starts lease-reconciler: policy requeue, max_lease_losses 3"
}

submit_runs() {
	local i
	for ((i = 1; i <= runs; i++)); do
		"$build_folder/leasectl" submit --run "run-$i" >"$folder/submit" 2>&1 ||
			fail "leasectl submit run-$i: $(tail -n 1 "$folder/submit")"
	done
	tell demo "leasectl submit: run-1 … run-$runs"
}

start_worker() {
	PGUSER=demo_worker "$build_folder/examples/worker" --name "$1" --ttl "$ttl" \
		--step-time "$step_time" --until-empty >>"$folder/events" 2>&1 </dev/null 3<&- &
	worker_pid[$1]=$!
}

start_workers() {
	local i
	tell demo "starts $workers workers, with leases of $ttl"
	for ((i = 1; i <= workers; i++)); do
		start_worker "worker-$i"
	done
}

# A worker that was killed just as it ended its run has no lease to lose: then another try.
kill_a_worker() {
	local is_open=
	until [ -n "$is_open" ]; do
		[ -z "${killed:-}" ] || start_worker "$killed"
		wait_sql 'a worker in mid-run' "$(in_mid_run nobody)"
		read -r killed killed_run killed_attempt <<<"$answer"
		kill_process "${worker_pid[$killed]}"
		unset "worker_pid[$killed]"
		tell demo "SIGKILL to $killed, in the middle of $killed_run"
		is_open=$(sql "SELECT 'open' FROM lease.run_attempts WHERE run_id = '$killed_run'
		                  AND attempt_no = $killed_attempt AND finished_at IS NULL")
	done
}

# A worker that was stopped just as it ended its run has no lease to lose: then another try.
stop_a_worker() {
	local outcome=
	until [ "$outcome" = lease_expired ]; do
		wait_sql 'a second worker in mid-run' "$(in_mid_run "$killed")"
		read -r stopped stopped_run stopped_attempt <<<"$answer"
		kill -STOP "${worker_pid[$stopped]}"
		tell demo "SIGSTOP to $stopped, in the middle of $stopped_run"
		wait_sql "the end of attempt $stopped_attempt of $stopped_run" \
			"SELECT outcome FROM lease.run_attempts WHERE run_id = '$stopped_run'
			    AND attempt_no = $stopped_attempt AND finished_at IS NOT NULL"
		outcome=$answer
		[ "$outcome" = lease_expired ] || kill -CONT "${worker_pid[$stopped]}"
	done
}

continue_the_worker() {
	wait_sql "another worker on $stopped_run" \
		"SELECT split_part(owner, ':', 1) FROM lease.run_attempts
		  WHERE run_id = '$stopped_run' AND attempt_no > $stopped_attempt LIMIT 1"
	[ "$answer" != "$stopped" ] || fail "$stopped claimed a run while it was stopped"
	kill -CONT "${worker_pid[$stopped]}"
	tell demo "SIGCONT to $stopped: it still believes in $stopped_run"
	wait_line "$stopped to notice" "*$stopped lost its lease on $stopped_run (*): stopped*"
}

wait_for_all_runs() {
	local failed
	wait_sql 'all runs to end' "SELECT 'ended' FROM lease.runs HAVING bool_and(finished_at IS NOT NULL)"
	failed=$(sql "SELECT run_id, status FROM lease.runs WHERE status <> 'completed' LIMIT 1")
	[ -z "$failed" ] || fail "$failed"
}

stop_all() {
	local name status=0
	for name in "${!worker_pid[@]}"; do
		while kill -0 "${worker_pid[$name]}" 2>/dev/null; do
			check_time "$name to end"
			sleep 0.05
		done
		wait "${worker_pid[$name]}" || fail "$name ended with exit code $?"
		unset "worker_pid[$name]"
	done
	kill -TERM "$daemon_pid"
	wait "$daemon_pid" || status=$?
	daemon_pid=
	drain
	[ "$status" = 0 ] || fail "the daemon ended with exit code $status"
}

show_story() {
	echo
	echo "leasectl explain $1"
	"$build_folder/leasectl" explain "$1" || fail "leasectl explain $1 failed"
}

show_history() {
	echo
	echo "leasectl history $1"
	"$build_folder/leasectl" history "$1" || fail "leasectl history $1 failed"
}

judge() {
	local unexplained hurt
	unexplained=$(sql 'SELECT run_id, reason FROM lease.unexplained_runs
	                   UNION ALL SELECT run_id, reason FROM lease.unexplained_nodes LIMIT 1')
	[ -z "$unexplained" ] || fail "unexplained: $unexplained"
	hurt=$(sql "SELECT count(*) FROM lease.run_attempts WHERE outcome = 'lease_expired'
	             AND (run_id, attempt_no) IN (('$killed_run', $killed_attempt),
	                                          ('$stopped_run', $stopped_attempt))")
	[ "$hurt" = 2 ] || fail "$hurt of the 2 hurt attempts are closed as lease_expired"
	verdict="ok $(sql "
		SELECT format('runs=%s completed=%s attempts=%s lease_expired=%s detection_ms_max=%s',
		        (SELECT count(*) FROM lease.runs),
		        (SELECT count(*) FROM lease.runs WHERE status = 'completed'),
		        count(*), count(*) FILTER (WHERE outcome = 'lease_expired'),
		        round(1000 * max(extract(epoch FROM finished_at - lease_expires_at))
		              FILTER (WHERE outcome = 'lease_expired'), 1))
		  FROM lease.run_attempts")"
}

for program in lease-reconciler leasectl examples/worker; do
	[ -x "$build_folder/$program" ] ||
		fail "$build_folder/$program is not there: run make demo, or set LEASE_BUILD"
done
folder=$(mktemp -d "${TMPDIR:-/tmp}/lease-demo-XXXXXX")
chmod 0711 "$folder"
: >"$folder/events"
exec 3<"$folder/events"

start_database
start_daemon
submit_runs
start_workers
kill_a_worker
stop_a_worker
continue_the_worker
wait_for_all_runs
stop_all
show_story "$killed_run"
[ "$stopped_run" = "$killed_run" ] || show_history "$stopped_run"
echo
judge
