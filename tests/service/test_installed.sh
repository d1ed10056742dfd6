#!/usr/bin/env bash
# The service as it is installed, under a real systemd, with a real PostgreSQL beside it: what
# `make install` puts there is laid over a machine of the test's own (machine.sh), and the commands
# of the README start it. With LEASE_SERVICE_PACKAGES, a folder of Debian packages, it is these that
# are installed, upgraded and purged. Prints TAP.
#
# Where namespaces are not allowed every test says that it is skipped, and why; with CI or
# LEASE_REQUIRE_SERVICE_TESTS in the environment that is a failure. It leaves nothing behind, whatever
# ends it.
set -euo pipefail

share=/run/share # where the machine sees the folder that this script put things into
patience=60      # seconds
required=0      # whether what is not possible here is a failure
[ -z "${CI:-}${LEASE_REQUIRE_SERVICE_TESTS:-}" ] || required=1
skipped=77 # a test's exit status
unit=lease-reconciler.service
drop_ins=/run/systemd/system/$unit.d
configuration=/etc/lease-reconciler.yaml
packages=$share/packages
files_before=$share/files-before
password_file=/etc/lease-reconciler.password
socket=/run/postgresql
remote_address=192.0.2.10
password='a "strange" \pass word'

wait_until() {
	local deadline=$((SECONDS + patience))
	until "$@"; do
		if [ $SECONDS -ge $deadline ]; then
			echo "waited in vain: $*"
			systemctl status --no-pager --full $unit || true
			journalctl --no-pager --output=cat --lines=20 --unit=$unit
			return 1
		fi
		sleep 0.1
	done
}

# -- the database --------------------------------------------------------------------------------------

sql() {
	"$psql" --host="$socket" --username=postgres --dbname=app --no-psqlrc --quiet --tuples-only \
		--no-align --set=ON_ERROR_STOP=1 --command="$1"
}

# The socket where Debian has it and the usual peer authentication; passwords by TCP.
start_database() {
	ip address add $remote_address/32 dev lo
	install -d -m 1777 "$socket"
	mkdir -p /run/systemd/system
	tee /run/systemd/system/database.service >/dev/null <<-END
		[Service]
		Type=forking
		ExecStart=$share/cluster.sh start /var/lib/lease-database -c unix_socket_directories=$socket -c listen_addresses=127.0.0.1,$remote_address -c fsync=off -c log_min_messages=panic
		ExecStop=$share/cluster.sh stop /var/lib/lease-database
	END
	systemctl start database
	tee /var/lib/lease-database/data/pg_hba.conf >/dev/null <<-END
		local all postgres trust
		local all all peer
		host all all all scram-sha-256
	END
	"$psql" --host="$socket" --username=postgres --quiet --no-psqlrc --output=/dev/null \
		--command='select pg_reload_conf()' --command='create database app'
	leasectl migrate --dbname "host=$socket user=postgres dbname=app" >/dev/null
	sql 'create role "lease-reconciler" login in role lease_reconciler'
	sql "create role remote login in role lease_reconciler password \$p\$$password\$p\$"
}

# As the README says it after `make install`; a package does all that by itself.
install_service() {
	if [ -d $packages ]; then
		list_files >$files_before
		dpkg --install $packages/*.deb >$share/dpkg.log 2>&1 || { cat $share/dpkg.log; return 1; }
	else
		systemd-sysusers
		journalctl --update-catalog
		chgrp lease-reconciler $configuration
		systemctl daemon-reload
	fi
	# Of a build with sanitizers, looking for leaks needs what the sandbox refuses (ptrace).
	systemctl set-environment ASAN_OPTIONS=detect_leaks=0
}

# What a package may leave; caches and the package manager's own notes belong to others.
list_files() {
	find /etc /usr /var -xdev \( -path /var/lib/dpkg -o -path /var/cache -o -path /var/log \
		-o -path /var/lib/lease-database \) -prune -o -print | sort
}

open_lease() { # RUN LEASE
	sql "insert into lease.runs (run_id, status) values ('$1', 'running');
		insert into lease.run_attempts (run_id, attempt_no, owner, started_at, heartbeat_at, lease_expires_at)
		select '$1', 1, 'w:1', now, now, now + interval '$2' from clock_timestamp() as now"
}

# -- the service ---------------------------------------------------------------------------------------

configure() {
	tee $configuration >/dev/null
}

configure_default() {
	printf '%s\n' 'interval: 200ms' 'reconnect_max: 200ms' "$@" 'databases:' '  - name: app' \
		"    conninfo: host=$socket dbname=app user=lease-reconciler" | configure
}

configure_remote() { # ADDRESS
	configure <<-END
		connect_timeout: 1s
		reconnect_max: 200ms
		databases:
		  - name: app
		    conninfo: host=$1 dbname=app user=remote
		    password_file: credential:password
	END
}

drop_in() {
	mkdir -p "$drop_ins"
	{
		echo '[Service]'
		printf '%s\n' "$@"
	} | tee "$drop_ins/test.conf" >/dev/null
	systemctl daemon-reload
}

# Each test begins with the service stopped, as installed, with a configuration that works.
begin_anew() {
	systemctl stop $unit
	systemctl reset-failed $unit 2>/dev/null || true
	if [ -e "$drop_ins" ]; then
		rm -r "$drop_ins"
		systemctl daemon-reload
	fi
	rm -f $password_file
	configure_default
}

start() {
	systemctl start $unit
	wait_until status_has '1 connected; app: '
}

property() {
	systemctl show --property="$1" --value $unit
}

status_has() {
	[[ $(property StatusText) = *"$1"* ]]
}

is() { # PROPERTY VALUE
	[ "$(property "$1")" = "$2" ]
}

# Fails with both values when they differ.
expect() { # WHAT ACTUAL EXPECTED
	[ "$2" = "$3" ] || {
		echo "$1 is '$2', not '$3'"
		return 1
	}
}

expect_failure() { # COMMAND …
	if "$@" 2>/dev/null; then
		echo "it should have failed: $*"
		return 1
	fi
}

# The newest entry of this kind that the service wrote since it was last started, as JSON.
entry() { # NAME [FIELD=VALUE …]
	local name=$1 id
	shift
	id=$(awk -F'"' -v name="$name" '$2 == name { print $4 }' "$share/journal.c")
	journalctl --sync
	journalctl --no-pager --output=json --lines=1 "MESSAGE_ID=$id" \
		"_SYSTEMD_INVOCATION_ID=$(property InvocationID)" "$@" | grep .
}

has_entry() {
	entry "$@" >/dev/null
}

skip() { # REASON
	echo "$1"
	exit $((required ? 1 : skipped))
}

expect_running_on() { # PID
	expect ActiveState "$(property ActiveState)" active
	expect MainPID "$(property MainPID)" "$1"
}

# -- tests -----------------------------------------------------------------------------------------------

verify_finds_no_fault() {
	expect 'what systemd-analyze verify says' "$(systemd-analyze verify $unit 2>&1)" ''
}

the_sandbox_is_rated_safe() {
	systemd-analyze security --no-pager --threshold=10 $unit
	drop_in 'IPAddressAllow=192.0.2.7 192.0.2.8'
	systemd-analyze security --no-pager --threshold=10 $unit
}

it_starts_by_the_commands_of_the_readme() {
	systemctl enable --quiet --now $unit
	expect ActiveState "$(property ActiveState)" active
	expect UnitFileState "$(property UnitFileState)" enabled
	wait_until status_has '1 database: 1 connected; app: 0 open, 0 expired, oldest unclosed 0 s'
	has_entry started
	has_entry connected DATABASE=app
}

# As long as it says nothing systemd goes on waiting, though the daemon works.
it_is_active_only_when_it_says_so() {
	drop_in UnsetEnvironment=NOTIFY_SOCKET
	systemctl start --no-block $unit
	wait_until has_entry connected
	expect ActiveState "$(property ActiveState)" activating
}

it_starts_without_its_database_and_finds_it() {
	systemctl stop database
	systemctl start $unit
	expect ActiveState "$(property ActiveState)" active
	wait_until status_has 'app: unreachable'
	systemctl start database
	wait_until status_has '1 connected; app: '
	expect NRestarts "$(property NRestarts)" 0
}

# What the kernel says of the process, not what the unit asks for.
the_sandbox_is_in_force() {
	local pid status folder
	start
	pid=$(property MainPID)
	status=$(cat "/proc/$pid/status")
	expect NoNewPrivs "$(awk '/^NoNewPrivs:/ { print $2 }' <<<"$status")" 1
	expect Seccomp "$(awk '/^Seccomp:/ { print $2 }' <<<"$status")" 2
	expect capabilities "$(awk '/^Cap(Eff|Prm|Bnd|Amb):/ { print $2 }' <<<"$status" | sort -u)" \
		0000000000000000
	expect user "$(stat --format=%U:%G "/proc/$pid")" lease-reconciler:lease-reconciler
	for folder in / /usr /etc /run /var /dev; do
		expect_failure touch "/proc/$pid/root$folder/written"
	done
	expect_failure "/proc/$pid/root/bin/true"
	expect 'home folders' "$(find "/proc/$pid"/root/{root,home} -mindepth 1)" ''
	expect devices "$(find "/proc/$pid/root/dev" -name console)" ''
}

# Only a reload needs it.
it_starts_where_there_is_no_kill() {
	mv /bin/kill /bin/kill.away
	trap 'mv /bin/kill.away /bin/kill' EXIT
	start
}

a_reload_puts_a_new_configuration_in_force() {
	local pid
	start
	pid=$(property MainPID)
	configure_default 'policy: fail'
	systemctl reload $unit
	wait_until has_entry reloaded
	open_lease reloaded '-1 second'
	wait_until is_run reloaded failed
	expect_running_on "$pid"
}

is_run() {
	[ "$(sql "select status from lease.runs where run_id = '$1'")" = "$2" ]
}

a_bad_reload_changes_nothing() {
	local pid message
	configure_default 'policy: fail'
	start
	pid=$(property MainPID)
	configure_default 'policy: fial'
	systemctl reload $unit
	wait_until has_entry reload-refused PRIORITY=3
	message=$(entry reload-refused)
	[[ $message = *"$configuration:3:9: policy:"* ]] || expect message "$message" "file, line, column"
	open_lease not-reloaded '-1 second'
	wait_until is_run not-reloaded failed
	expect_running_on "$pid"
}

a_wrong_configuration_is_not_tried_again() {
	drop_in RestartSec=100ms
	configure_default 'policy: fial'
	expect_failure systemctl start $unit
	wait_until has_entry start-refused PRIORITY=3
	expect ActiveState "$(property ActiveState)" failed
	expect NRestarts "$(property NRestarts)" 0
}

a_stopped_daemon_is_killed_by_the_watchdog_and_comes_back() {
	local pid
	drop_in WatchdogSec=1s RestartSec=100ms
	start
	pid=$(property MainPID)
	kill -STOP "$pid"
	wait_until is NRestarts 1
	wait_until status_has '1 connected; app: '
	[ "$(property MainPID)" != "$pid" ]
	journalctl --sync
	journalctl --no-pager --output=cat UNIT=$unit | grep "Failed with result 'watchdog'" >/dev/null
	open_lease watched '-1 second'
	wait_until is_run watched running
}

# The watchdog is fed while the database is away: that is no fault of the service.
an_outage_is_no_reason_to_restart() {
	local pid
	drop_in WatchdogSec=2s
	start
	pid=$(property MainPID)
	systemctl stop database
	wait_until status_has 'app: unreachable'
	for _ in 1 2 3; do
		wait_until fed_since "$(property WatchdogTimestampMonotonic)"
	done
	systemctl start database
	wait_until status_has '1 connected; app: '
	expect_running_on "$pid"
}

fed_since() {
	[ "$(property WatchdogTimestampMonotonic)" -gt "$1" ]
}

a_password_comes_as_a_credential() {
	printf '%s\n' "$password" | install -m 600 /dev/stdin $password_file
	configure_remote 127.0.0.1
	drop_in LoadCredential=password:$password_file
	start
	expect 'the role' "$(sql "select usename from pg_stat_activity where application_name like 'lease%'")" remote
	journalctl --sync
	expect 'entries with the password' \
		"$(journalctl --no-pager --output=json --unit=$unit | grep -c 'pass word' || true)" 0
}

filter_is_missing() {
	journalctl --sync
	journalctl --no-pager --output=cat "UNIT=$unit" | grep 'does not support BPF/cgroup firewalling'
}

another_machine_is_out_of_reach_until_it_is_allowed() {
	printf '%s\n' "$password" | install -m 600 /dev/stdin $password_file
	! filter_is_missing || skip 'this kernel or container does not filter IP addresses by BPF'
	configure_remote $remote_address
	drop_in LoadCredential=password:$password_file
	systemctl start $unit
	wait_until has_entry connect-failed
	status_has 'app: unreachable'
	drop_in LoadCredential=password:$password_file IPAddressAllow=$remote_address
	systemctl restart $unit
	wait_until status_has '1 connected; app: '
}

# Every field against the fact in the table.
a_closed_attempt_is_in_the_journal_with_its_facts() {
	local json
	configure_default 'policy: requeue'
	start
	leasectl submit --dbname "host=$socket user=postgres dbname=app" --run lost --tenant workers >/dev/null
	systemd-run --quiet --unit=worker $share/worker --name worker-1 --tenant workers --ttl 1s \
		--conninfo "host=$socket user=postgres dbname=app"
	wait_until is_run lost running
	systemctl kill --signal=KILL worker
	wait_until has_entry attempt-closed RUN_ID=lost
	json=$(entry attempt-closed RUN_ID=lost)
	expect 'fields that differ' "$(sql "select array_agg(row(field, entry ->> field, fact))
		from (select \$json\$$json\$json\$::jsonb as entry) as journal, lease.run_attempts, lateral (values
			('MESSAGE_ID', 'f4eaa5cceb4b4d17bd172889553ab02d'), ('PRIORITY', '6'), ('DATABASE', 'app'),
			('RUN_ID', run_id), ('ATTEMPT_NO', attempt_no::text), ('LEASE_OWNER', owner),
			('OUTCOME', outcome), ('ERROR_CODE', error_code), ('RUN_STATUS', 'pending'),
			('LEASE_EXPIRES_AT', to_char(lease_expires_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')),
			('DETECTION_LAG_USEC', (extract(epoch from finished_at - lease_expires_at) * 1000000)::bigint::text),
			('_SYSTEMD_UNIT', '$unit'), ('SYSLOG_IDENTIFIER', 'lease-reconciler')
		) as facts (field, fact)
		where run_id = 'lost' and attempt_no = 1 and entry ->> field is distinct from fact")" ''
}

the_journal_explains_what_it_says() {
	local explained
	open_lease explained '-1 second'
	start
	wait_until has_entry attempt-closed RUN_ID=explained
	explained=$(journalctl --no-pager --catalog RUN_ID=explained)
	[[ $explained = *'Subject: Attempt 1 of run explained lost its lease'* ]] ||
		expect explanation "$explained" 'the subject, with its fields'
	[[ $explained = *"leasectl explain --config $configuration --database app explained"* ]] ||
		expect explanation "$explained" 'the command, with its file and run'
}

# Lines of the page that begin with journalctl, as they stand there: none of them is refused.
the_journal_commands_of_the_page_work() {
	local command n=0 printed
	open_lease run-1 '-1 second'
	start
	wait_until has_entry attempt-closed RUN_ID=run-1
	while read -r command; do
		[[ $command != *' -f' ]] || command="$command --no-tail -n 1 & sleep 0.1; kill %1"
		printed=$(bash -c "set -eo pipefail; export SYSTEMD_PAGER=; $command" 2>&1) ||
			expect "the exit code of '$command'" "$? ($printed)" 0
		n=$((n + 1))
		case $command in
		*RUN_ID=run-1 | *DATABASE=app) [[ $printed = *'attempt 1 of run run-1 closed'* ]] ||
			expect "what '$command' prints" "$printed" 'the closed attempt' ;;
		*'uniq -c'*) [[ $printed$'\n' = *' w'$'\n'* ]] ||
			expect "what '$command' prints" "$printed" 'the owner w' ;;
		esac
	done < <(grep '^journalctl ' $share/observing.md)
	[ $n -ge 10 ] || expect 'commands on the page' $n '10 or more'
}

# In the folder that the unit makes, for everybody to read; it stays when the service stops.
metrics_are_written_within_the_sandbox() {
	local file=/run/lease-reconciler/lease-reconciler.prom
	configure_default "metrics_file: $file" 'metrics_interval: 100ms'
	start
	wait_until grep -qx 'lease_reconciler_database_up{database="app"} 1' $file
	setpriv --reuid=nobody --regid=nogroup --clear-groups cat $file >/dev/null
	expect 'what is in the folder' "$(find /run/lease-reconciler -mindepth 1 ! -name '*.prom.*')" $file
	systemctl stop $unit
	grep -qx 'lease_reconciler_connections_total{database="app"} 1' $file
	expect 'entries of faults' "$(journalctl --no-pager --output=cat --priority=warning \
		"_SYSTEMD_INVOCATION_ID=$(property InvocationID)")" ''
}

# Its transaction waits for a row that somebody else holds.
a_stop_in_mid_transaction_takes_less_than_two_seconds() {
	drop_in TimeoutStopSec=2s
	configure_default 'lock_timeout: 9s'
	open_lease held '-1 second'
	{ sql "begin; select from lease.run_attempts where run_id = 'held' for update; select pg_sleep(60)" || true; } &
	wait_until is_activity "query like '%pg_sleep(60)%' and wait_event = 'PgSleep'"
	systemctl start $unit
	wait_until is_activity "usename = 'lease-reconciler' and wait_event_type = 'Lock'"
	systemctl stop $unit
	kill_sleeper
	expect Result "$(property Result)" success
	expect ExecMainStatus "$(property ExecMainCode) $(property ExecMainStatus)" '1 0'
	has_entry stopped
}

is_activity() { # CONDITION
	[ "$(sql "select count(*) from pg_stat_activity where pid <> pg_backend_pid() and $1")" = 1 ]
}

kill_sleeper() {
	sql "select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'PgSleep'" >/dev/null
	wait
}

# -- tests of the packages ---------------------------------------------------------------------------

a_package_starts_nothing_before_it_is_configured() {
	expect ActiveState "$(property ActiveState)" inactive
	expect ActiveEnterTimestamp "$(property ActiveEnterTimestamp)" ''
	expect UnitFileState "$(property UnitFileState)" enabled
	expect "rights of $configuration" "$(stat --format='%a %U:%G' $configuration)" \
		'640 root:lease-reconciler'
}

# The new version brings another sample; what the owner wrote and who may read it stay.
an_upgrade_keeps_the_configuration_and_the_daemon() {
	local pid before work
	start
	pid=$(property MainPID)
	chgrp adm $configuration
	before=$(stat --format='%a %U:%G' $configuration && cat $configuration)
	work=$(mktemp -d)
	dpkg-deb --raw-extract $packages/lease-reconciler_*.deb "$work/package"
	sed -i 's/^Version: .*/&+upgraded/' "$work/package/DEBIAN/control"
	echo '# new' >>"$work/package$configuration"
	dpkg-deb --build "$work/package" "$work/new.deb" >/dev/null
	dpkg --force-confold --install "$work/new.deb" </dev/null
	expect "$configuration" "$(stat --format='%a %U:%G' $configuration && cat $configuration)" "$before"
	expect_running_on "$pid"
	chgrp lease-reconciler $configuration
	systemctl restart $unit
	wait_until status_has '1 connected; app: '
	rm -r "$work" "$configuration.dpkg-dist"
}

removing_keeps_the_configuration_and_purging_leaves_nothing() {
	start
	dpkg --remove lease-reconciler
	expect ActiveState "$(property ActiveState)" inactive
	expect LoadState "$(property LoadState)" not-found
	test -e $configuration
	dpkg --purge lease-reconciler leasectl liblease-dev liblease1
	expect 'files that differ' "$(list_files | comm -3 $files_before -)" ''
	expect accounts "$(getent passwd lease-reconciler; getent group lease-reconciler)" ''
}

# -- running them ------------------------------------------------------------------------------------------

tests=(
	verify_finds_no_fault
	the_sandbox_is_rated_safe
	it_starts_by_the_commands_of_the_readme
	it_is_active_only_when_it_says_so
	it_starts_without_its_database_and_finds_it
	the_sandbox_is_in_force
	it_starts_where_there_is_no_kill
	a_reload_puts_a_new_configuration_in_force
	a_bad_reload_changes_nothing
	a_wrong_configuration_is_not_tried_again
	a_stopped_daemon_is_killed_by_the_watchdog_and_comes_back
	an_outage_is_no_reason_to_restart
	a_password_comes_as_a_credential
	another_machine_is_out_of_reach_until_it_is_allowed
	a_closed_attempt_is_in_the_journal_with_its_facts
	the_journal_explains_what_it_says
	the_journal_commands_of_the_page_work
	metrics_are_written_within_the_sandbox
	a_stop_in_mid_transaction_takes_less_than_two_seconds
)

if [ -n "${LEASE_SERVICE_PACKAGES:-}" ]; then
	tests=(
		a_package_starts_nothing_before_it_is_configured
		"${tests[@]}"
		an_upgrade_keeps_the_configuration_and_the_daemon
		removing_keeps_the_configuration_and_purging_leaves_nothing
	)
fi

# Prints what became of a test; its output follows as comments when it failed.
report() { # NUMBER NAME STATUS OUTPUT
	case $3 in
	0) echo "ok $1 - $2" ;;
	"$skipped") echo "ok $1 - $2 # SKIP ${4##*$'\n'}" ;;
	*)
		echo "not ok $1 - $2"
		printf '# %s\n' "${4//$'\n'/$'\n'# }"
		;;
	esac
}

# TEST_FILTER is a pattern of names; VERBOSE tells the time on stderr.
if [ -n "${TEST_FILTER:-}" ]; then
	for index in "${!tests[@]}"; do
		# shellcheck disable=SC2053 # a pattern
		[[ ${tests[index]} = $TEST_FILTER ]] || unset "tests[index]"
	done
fi

run_tests() {
	local number=0 name output status
	for name in "${tests[@]}"; do
		number=$((number + 1))
		# Not as a condition: within one a failing command would not end the test.
		set +e
		output=$(set -e; exec 2>&1; begin_anew; "$name")
		status=$?
		set -e
		[ -z "${VERBOSE:-}" ] || echo "# $SECONDS s: $name" >&2
		report "$number" "$name" "$status" "$output"
	done
}

report_all() { # STATUS REASON
	local number=0 name
	for name in "${tests[@]}"; do
		number=$((number + 1))
		report "$number" "$name" "$1" "$2"
	done
}

# In the machine.
if [ "${1:-}" = --inside ]; then
	psql=$(bash $share/cluster.sh bindir)/psql
	install_service >&2
	start_database
	run_tests
	exit 0
fi

# -- outside: the machine ------------------------------------------------------------------------------

source=${LEASE_SOURCE:?run it by tests/run.sh or make service-check}
tree=$LEASE_BUILD/tests/service/tree

machine() {
	bash "$source/tests/service/machine.sh" "$@"
}

# The keeper leads a session of its own and ends with descriptor 9: even a kill -9 of this script,
# or of its whole process group, leaves no machine behind.
boot_machine() {
	mkfifo "$dir/lifeline"
	mkdir "$dir/share"
	cp "$source/tests/cluster.sh" "$source/daemon/journal.c" "$source/docs/observing.md" \
		"$LEASE_BUILD/examples/worker" "$0" "$dir/share"
	if [ -n "${LEASE_SERVICE_PACKAGES:-}" ]; then
		mkdir "$dir/no-tree" "$dir/share/packages"
		tree=$dir/no-tree
		cp "$LEASE_SERVICE_PACKAGES"/{lease-reconciler,leasectl,liblease1,liblease-dev}_*.deb \
			"$dir/share/packages"
	fi
	setsid bash "$source/tests/service/machine.sh" keep "$dir" "$tree" \
		<"$dir/lifeline" >"$dir/keeper" 2>&1 &
	keeper=$!
	exec 9>"$dir/lifeline"
	machine wait "$dir"
}

finish() {
	exec 9>&-
	[ -z "$keeper" ] || wait "$keeper" || true
	rm -rf "$dir"
}

dir=$(mktemp -d "${TMPDIR:-/tmp}/lease-service-XXXXXX")
keeper=
trap finish EXIT
trap 'exit 143' INT TERM HUP
echo "1..${#tests[@]}"
if ! reason=$(machine possible); then
	report_all $((required ? 1 : skipped)) "no machine of the test's own: $reason"
	exit
fi
boot_machine
machine in "$dir" env VERBOSE="${VERBOSE:-}" TEST_FILTER="${TEST_FILTER:-}" \
	LEASE_SERVICE_PACKAGES="${LEASE_SERVICE_PACKAGES:-}" \
	LEASE_REQUIRE_SERVICE_TESTS="${CI:-}${LEASE_REQUIRE_SERVICE_TESTS:-}" \
	bash "$share/${0##*/}" --inside
