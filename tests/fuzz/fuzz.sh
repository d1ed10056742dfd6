#!/usr/bin/env bash
# Runs fuzz targets one after the other, each for so many seconds, and keeps what they learnt.
#
#   fuzz.sh BUILD SECONDS TARGET…      `make fuzz` calls it
#
# Inputs begin from tests/fuzz/corpus/TARGET. What covers new code is merged into it at the end, if it
# is small: at most 200 files and 300 kB a target. A finding stops the run; its input lies in
# BUILD/findings then, and belongs into the corpus as regression-… once it is mended.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$1 seconds=$2
shift 2
mkdir -p "$build/findings"
# libpq makes room for as much as a message says that it brings: that must fail then, not weigh
limits=allocator_may_return_null=1:max_allocation_size_mb=256
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1:$limits}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
# what is on this machine is none of the fuzzer's business
unset PGHOST PGPORT PGUSER PGDATABASE PGSERVICE PGPASSWORD LEASE_RUN_ID LEASE_OWNER LEASE_ATTEMPT_NO
unset CREDENTIALS_DIRECTORY NOTIFY_SOCKET JOURNAL_STREAM

for target in "$@"; do
	kept=$here/corpus/$target work=$build/corpus-$target
	program=$build/tests/fuzz/fuzz_$target
	mkdir -p "$kept" "$work"
	options=(-timeout=20 -max_len=16384 -rss_limit_mb=1024 -malloc_limit_mb=100000 -print_final_stats=1
		-artifact_prefix="$build/findings/$target-")
	[ ! -f "$here/$target.dict" ] || options+=(-dict="$here/$target.dict")
	"$program" "${options[@]}" -max_total_time="$seconds" "$work" "$kept" \
		>"$build/$target.log" 2>&1 </dev/null || {
		tail -n 60 "$build/$target.log"
		echo "fuzz: $target: a finding; its input is in $build/findings"
		exit 1
	}
	merged=$(mktemp -d)
	# the regressions stay, whatever they cover
	find "$kept" -name 'regression-*' -exec cp {} "$merged" \;
	"$program" -merge=1 -max_len=4096 "$merged" "$kept" "$work" >"$build/$target-merge.log" 2>&1 </dev/null
	# the smallest ones, as far as they fit
	find "$merged" -type f ! -name 'regression-*' -printf '%s %f\n' | sort -n |
		awk '{ n++; bytes += $1; if (n > 180 || bytes > 250000) print $2 }' |
		(cd "$merged" && xargs -r rm)
	rm -rf "$kept" && mv "$merged" "$kept" && chmod -R u=rwX,go=rX "$kept"
	printf 'fuzz: %s: %s executions in %s s, no finding; corpus: %s files, %s\n' "$target" \
		"$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log")" "$seconds" \
		"$(find "$kept" -type f | wc -l)" "$(du -sbh "$kept" | cut -f1)"
done
