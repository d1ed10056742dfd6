#!/usr/bin/env bash
# Checks the models with spin and counts.
#
#   tests/model/run.sh            everything
#   tests/model/run.sh --quick    the small configurations and the mutants, for `make check`
#   tests/model/run.sh --keep     also rewrites the kept traces from what the mutants show now
#   tests/model/run.sh --tap      speaks as a test program does, for tests/run.sh
#   tests/model/run.sh NAME…      only these configurations
#
# One line a configuration: name, states, depth, memory, seconds, result. The last line is
# `N passed, N failed` alone. A model that must hold passes when the whole of its states was
# searched without a violation; a mutant passes when it fails in the way that its line names. Its
# trace, replayed, is compared with the one in traces/; one that differs is said, not counted: other
# versions of spin may find another one of the same length.
#
# "exact": each state is stored. "64-bit": states are known by a 64-bit hash (spin's HC4), so that
# the odds of having missed one are n² / 2^65 for n states; the line gives them.
#
# It runs one verifier at a time, in a temporary folder of its own, and leaves nothing behind.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
memory_limit=5500 # megabytes a verifier

# name, when (quick, full: see below), how, expected text of a mutant (- : it holds), flags
#   exact, hashed     safety, depth first
#   shortest          safety, breadth first: the shortest trace of a mutant
#   liveness          LTL under weak fairness
#   cycle             the same for a mutant: goes on to a short trace, though not the shortest
# when: both; quick and full stand for one of them alone
two_workers='-DATTEMPTS=2 -DOWNERS=2'
configurations=(
	"lease-small             quick exact    - lease.pml   $two_workers -DTTL=1"
	"lease                   full  exact    - lease.pml   $two_workers"
	"lease-three-attempts    full  hashed   - lease.pml   -DATTEMPTS=3 -DOWNERS=3"
	"lease-leftover          full  exact    - lease.pml   $two_workers -DLEFTOVER -DNO_CANCEL"
	"lease-leftover-cancel   full  exact    - lease.pml   $two_workers -DLEFTOVER"
	"lease-liveness          full  liveness - lease.pml   $two_workers -DLIVENESS -DTRIES=2 -DNO_CANCEL"

	"mutant-close-unguarded  both  shortest another's_valid_lease  lease.pml $two_workers -DMUTANT_CLOSE_UNGUARDED -DCHECK=WORKS_ALONE"
	"mutant-run-without-close both shortest not_running_has_an_open_attempt lease.pml $two_workers -DMUTANT_RUN_WITHOUT_CLOSE -DCHECK=RUN_AGREES"
	"mutant-refresh-shortens both  shortest another's_valid_lease  lease.pml $two_workers -DMUTANT_REFRESH_SHORTENS -DCHECK=WORKS_ALONE"
	"mutant-early-look       both  shortest a_closed_attempt_changed lease.pml $two_workers -DWORKERS=1 -DRECONCILERS=1 -DNO_CANCEL -DTTL=1 -DMUTANT_EARLY_LOOK -DCHECK=CLOSED_STAYS"
	"mutant-takeover-keeps   both  shortest two_open_attempts      lease.pml $two_workers -DLEFTOVER -DMUTANT_TAKEOVER_KEEPS -DCHECK=ONE_OPEN_ATTEMPT"
	"mutant-local-end-late   full  shortest another's_valid_lease  lease.pml $two_workers -DMUTANT_LOCAL_END_LATE -DCHECK=WORKS_ALONE"
	"mutant-idle-in-transaction full cycle    acceptance_cycle     lease.pml $two_workers -DLIVENESS -DTRIES=2 -DNO_CANCEL -DMUTANT_IDLE_IN_TRANSACTION"

	"amnesty-small           quick exact    - amnesty.pml -DWORKERS=1"
	"amnesty                 full  exact    - amnesty.pml"
	"amnesty-longer          full  exact    - amnesty.pml -DWORKERS=1 -DTTL=4 -DAFTER=2"
	"amnesty-late            full  exact    - amnesty.pml -DWORKERS=1 -DTTL=5 -DLATE=1 -DGRACE=2"
	"amnesty-deadline        full  exact    - amnesty.pml -DWORKERS=1 -DDEADLINE=5"
	"amnesty-clock-forward   full  exact    - amnesty.pml -DWORKERS=1 -DBEATS=1 -DTTL=4 -DGRACE=3 -DFORWARD=3"
	"amnesty-clock-back      full  exact    - amnesty.pml -DWORKERS=1 -DBEATS=1 -DTTL=4 -DBACK=1"
	"amnesty-liveness        full  liveness - amnesty.pml -DWORKERS=1 -DLIVENESS"
	"amnesty-liveness-two    full  liveness - amnesty.pml -DLIVENESS -DOUTAGES=1"

	"mutant-beat-reads-twice both  shortest a_live_worker_is_closed amnesty.pml -DWORKERS=1 -DMUTANT_BEAT_READS_TWICE -DCHECK=CLOSED_LIVE"
	"mutant-consulted-at-look both shortest a_live_worker_is_closed amnesty.pml -DWORKERS=1 -DMUTANT_CONSULTED_AT_LOOK -DCHECK=CLOSED_LIVE"
	"mutant-never-consulted  full  shortest a_live_worker_is_closed amnesty.pml -DWORKERS=1 -DMUTANT_NEVER_CONSULTED -DCHECK=CLOSED_LIVE"
	"mutant-renewal-strict   full  shortest a_live_worker_is_refused amnesty.pml -DWORKERS=1 -DMUTANT_RENEWAL_STRICT -DCHECK=REFUSED_LIVE"
	"mutant-protect-moves    full  shortest a_live_worker_is_closed amnesty.pml -DWORKERS=1 -DTTL=5 -DLATE=1 -DGRACE=2 -DMUTANT_PROTECT_MOVES -DCHECK=CLOSED_LIVE"
	"mutant-after-too-long   full  shortest a_live_worker_is_closed amnesty.pml -DWORKERS=1 -DAFTER=2 -DCHECK=CLOSED_LIVE"
	"mutant-grace-too-short  full  shortest a_live_worker_is_closed amnesty.pml -DWORKERS=1 -DTTL=5 -DLATE=1 -DGRACE=1 -DCHECK=CLOSED_LIVE"
	"mutant-after-too-long-late full shortest a_live_worker_is_closed amnesty.pml -DWORKERS=1 -DTTL=4 -DLATE=1 -DGRACE=2 -DCHECK=CLOSED_LIVE"
	"mutant-grace-too-short-clock full shortest a_live_worker_is_closed amnesty.pml -DWORKERS=1 -DBEATS=1 -DTTL=4 -DGRACE=2 -DFORWARD=3 -DCHECK=CLOSED_LIVE"
	"mutant-past-deadline    full  shortest past_the_deadline       amnesty.pml -DWORKERS=1 -DDEADLINE=4 -DMUTANT_PAST_DEADLINE -DCHECK=PAST_DEADLINE"
	"mutant-beats-too-rare   full  cycle    acceptance_cycle        amnesty.pml -DWORKERS=1 -DLIVENESS -DBEAT_EVERY=2"
	"mutant-beats-too-slow   full  cycle    acceptance_cycle        amnesty.pml -DWORKERS=1 -DLIVENESS -DBEAT_TAKES=2"
	"limit-flapping          full  shortest a_live_worker_is_closed amnesty.pml -DWORKERS=1 -DLIMIT_FLAPPING -DCHECK=CLOSED_LIVE"
)

fail() {
	echo "run.sh: $1" >&2
	exit "${2:-70}"
}

quick=false keep=false tap=false names=()
for argument in "$@"; do
	case $argument in
	--quick) quick=true ;;
	--keep) keep=true ;;
	--tap) tap=true ;;
	-*) fail "unknown option $argument; usage: run.sh [--quick] [--keep] [--tap] [NAME…]" 64 ;;
	*) names+=("$argument") ;;
	esac
done
command -v spin >/dev/null || fail 'spin is not installed: run tests/prepare.sh, which installs it' 69
command -v "${CC:-cc}" >/dev/null || fail 'there is no C compiler: run tests/prepare.sh' 69

work=$(mktemp -d "${TMPDIR:-/tmp}/lease-model-XXXXXX")
verifier=
finish() {
	[ -z "$verifier" ] || kill -KILL "$verifier" 2>/dev/null || true
	rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

is_wanted() { # name, when
	local name
	if [ ${#names[@]} -gt 0 ]; then
		for name in "${names[@]}"; do
			[ "$name" != "$1" ] || return 0
		done
		return 1
	fi
	[ "$2" = both ] || { $quick && [ "$2" = quick ]; } || { ! $quick && [ "$2" = full ]; }
}

# Sets `build` (flags for the verifier's compilation) and `search` (its own).
choose_search() {
	build=(-w "-DMEMLIM=$memory_limit") search=(-n)
	case $1 in
	exact) build+=(-O1 -DSAFETY -DCOLLAPSE) search+=(-m1000000 -w24) ;;
	hashed) build+=(-O2 -DSAFETY -DHC4) search+=(-m1000000 -w27) ;;
	shortest) build+=(-O0 -DSAFETY -DBFS -DCOLLAPSE) search+=(-w22) ;;
	cycle) build+=(-O1 -DCOLLAPSE -DNFAIR=3 -DREACH) search+=(-m100000 -w22 -a -f -i) ;;
	liveness) build+=(-O2 -DCOLLAPSE -DNFAIR=3) search+=(-m1000000 -w24 -a -f) ;;
	*) fail "unknown kind of search: $1" ;;
	esac
}

# Prints what went wrong, or nothing: the verifier must have seen everything.
find_gap() { # output, exit code
	if [ "$2" != 0 ]; then
		echo "the verifier ended with $2"
	elif grep -q 'max search depth too small' "$1"; then
		echo 'the search was cut off in its depth'
	elif ! grep -q '^State-vector' "$1" || grep -q -e 'Search not completed' -e 'out of memory' \
		-e 'memory limit' -e 'hash table full' "$1"; then
		echo 'the search did not come to its end'
	fi
}

# The replay of what was found, as a story.
replay() { # model, flags…
	local model=$1
	shift
	spin -k ./*.trail -T -DREPLAY "$@" "$here/$model" 2>/dev/null |
		grep -E -e '^[0-9]+: [a-z]' -e VIOLATED -e 'START OF CYCLE' || true
}

compare_trace() { # name
	if $keep; then
		cp trace "$here/traces/$1.txt"
	elif ! cmp -s trace "$here/traces/$1.txt"; then
		note=' (not the kept trace)'
	fi
}

judge_mutant() { # name, expected text, model, flags…
	local name=$1 expected=${2//_/ }
	shift 2
	if ! ls ./*.trail >/dev/null 2>&1; then
		verdict='FAILED: nothing is violated'
		return
	fi
	{
		echo "$name ($*)"
		replay "$@"
	} >trace
	if ! grep -q -e "$expected" trace out; then
		verdict="FAILED: it breaks otherwise than by '$expected'"
		return
	fi
	compare_trace "$name"
	verdict="fails as it must: $expected$note"
}

judge_model() { # how, exit code, states
	local gap
	gap=$(find_gap out "$2")
	if ls ./*.trail >/dev/null 2>&1; then
		verdict="FAILED: $(grep -m 1 '^pan:1:' out || echo violated)"
	elif [ -n "$gap" ]; then
		verdict="FAILED: $gap"
	elif [ "$1" = hashed ]; then
		verdict=$(awk -v n="$3" 'BEGIN { printf "holds (64-bit; odds of a miss %.0e)", n * n / 2 ^ 65 }')
	else
		verdict='holds (exact)'
	fi
}

check() { # name, how, expected, model, flags…
	local name=$1 how=$2 expected=$3 model=$4 build search verdict note='' code=0 begin states depth memory
	shift 4
	begin=$SECONDS
	rm -rf "$work/run"
	mkdir "$work/run"
	cd "$work/run"
	choose_search "$how"
	spin -a "$@" "$here/$model" >generated 2>&1 || { cat generated >&2; fail "$name: spin refused $model"; }
	"${CC:-cc}" "${build[@]}" -o "$name" pan.c || fail "$name: the verifier does not compile"
	"./$name" "${search[@]}" >out 2>&1 &
	verifier=$!
	wait "$verifier" || code=$?
	verifier=
	states=$(awk '/states, stored/ { print int($1); exit }' out)
	memory=$(awk '/total actual memory usage/ { print int($1 + 1); exit }' out)
	depth=$(sed -n 's/.*depth reached \([0-9]*\).*/\1/p' out | head -n 1)
	if [ "$expected" = - ]; then
		judge_model "$how" "$code" "${states:-0}"
	else
		judge_mutant "$name" "$expected" "$model" "$@"
	fi
	printf '%-29s %9s states  depth %6s %5s MB %4d s  %s\n' "$name" "${states:-?}" "${depth:-?}" \
		"${memory:-?}" $((SECONDS - begin)) "$verdict"
	[[ $verdict != FAILED* ]]
}

wanted=()
for configuration in "${configurations[@]}"; do
	read -r name when _ <<<"$configuration"
	! is_wanted "$name" "$when" || wanted+=("$configuration")
done
[ ${#wanted[@]} -gt 0 ] || fail "there is no such configuration: ${names[*]}" 64
! $tap || echo "1..${#wanted[@]}"

passed=0 failed=0
for configuration in "${wanted[@]}"; do
	read -r name _ how expected model flags <<<"$configuration"
	# shellcheck disable=SC2086 # flags are words
	if check "$name" "$how" "$expected" "$model" $flags; then
		passed=$((passed + 1))
		! $tap || echo "ok $((passed + failed)) - $name"
	else
		failed=$((failed + 1))
		! $tap || echo "not ok $((passed + failed)) - $name"
	fi
done
$tap || echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
