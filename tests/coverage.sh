#!/usr/bin/env bash
# Which lines of the sources the tests have reached, from a build with --coverage that ran them.
#
#   coverage.sh BUILD      `make coverage` calls it
#
# Writes BUILD/coverage/index.html and all.txt, and prints a line for each file of the library. Fails
# when less than 95 % of the library's lines were reached. That every row of the state machine's
# table was taken is a test of its own: every_row_of_the_table_is_reached in unit/test_machine.
set -euo pipefail

build=$(cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p "$build/coverage"
gcovr --root . --filter 'lib/' --filter 'daemon/' --filter 'cli/' "$build/obj" \
	--html-details "$build/coverage/index.html" --txt "$build/coverage/all.txt"
echo "coverage: $build/coverage/index.html"
gcovr --root . --filter 'lib/' "$build/obj/lib" --fail-under-line 95
