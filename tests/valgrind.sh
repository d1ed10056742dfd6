#!/usr/bin/env bash
# Runs test programs, and every daemon and leasectl that they start, under valgrind's memcheck.
#
#   valgrind.sh PROGRAM…      `make valgrind` calls it
#
# It fails when a test fails, or when memcheck saw an error or a leak in any process: whatever is
# lost for certain, and what is lost with it. What it saw stays in LEASE_BUILD/valgrind. Nothing
# is suppressed. A process that a test kills with SIGKILL says what it
# did wrong until then, and nothing of leaks.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v valgrind >/dev/null || {
	echo "valgrind.sh: valgrind is not installed: bash tests/prepare.sh hardening" >&2
	exit 69
}
logs=$(cd "${LEASE_BUILD:-build}" && pwd)/valgrind
rm -rf "$logs"
mkdir -p "$logs"
chmod 777 "$logs" # some programs work as another user

# programs that are not this project's own
others='*/postgres,*/psql,*/pgbouncer,*/pg_*,*/initdb,*/bash,*/sh,*/dash,*/sleep,*/true,*/false'
others+=',*/cat,*/env,*/rm,*/su,*/runuser,*/setpriv,*/timeout,*/python3*,*/journalctl,*/kill,*/ip'
wrapper="valgrind --quiet --leak-check=full --show-leak-kinds=definite,indirect"
wrapper+=" --errors-for-leak-kinds=definite,indirect --num-callers=24 --trace-children=yes"
wrapper+=" --trace-children-skip=$others"
wrapper+=" --log-file=$logs/%p.log"
status=0
# It is twenty times slower: the deadline of a whole program stretches along.
TEST_WRAPPER=$wrapper TEST_TIMEOUT=${TEST_TIMEOUT:-3600} bash "$here/run.sh" "$@" || status=1

find "$logs" -name '*.log' -empty -delete
found=$(find "$logs" -name '*.log' | wc -l)
if [ "$found" -gt 0 ]; then
	head -n 40 "$logs"/*.log
	status=1
fi
echo "valgrind: $found processes with an error or a leak"
exit $status
