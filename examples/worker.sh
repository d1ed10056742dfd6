#!/usr/bin/env bash
# worker.sh - what leasectl runs for each run: a worker in shell.
#
#	leasectl work --dbname app --jobs 4 -- examples/worker.sh /var/lib/results
#
# leasectl claims, renews and ends the run; this says by its exit code how: 0 completed, 75 not now,
# anything else failed. A lost lease, a cancel request and the end of leasectl all end it by SIGTERM.
set -euo pipefail

results=${1:?usage: leasectl work -- worker.sh FOLDER}
part=

clean_up() {
	[ -z "$part" ] || rm -f "$part"
}
trap clean_up EXIT
trap 'exit 143' TERM

# Somebody else has to be asked and does not answer: later, and then still later.
[ -d "$results" ] || exit 75

# Under a name of this attempt's own: one whose lease was lost may still be ending.
part=$results/$LEASE_RUN_ID.$LEASE_ATTEMPT_NO.part
echo "the result of $LEASE_RUN_ID, by $LEASE_OWNER" >"$part"
mv "$part" "$results/$LEASE_RUN_ID.result"
part=
