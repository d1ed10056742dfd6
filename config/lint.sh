#!/usr/bin/env bash
# Looks for faults in the sources with the tools that are installed, and names those that are not.
#
#   lint.sh C_FILES SHELL_FILES COMPILER_FLAG…      (each list in one argument; `make lint` calls it)
#
# Everything that a tool says is a failure. What it says wrongly of one place is answered there (a
# suppression in the line, with its reason); a whole check is off only below, with its reason.
set -euo pipefail

read -r -a c_files <<<"${1//$'\n'/ }"
read -r -a shell_files <<<"${2//$'\n'/ }"
shift 2
flags=("$@")
status=0
sources=() product=() tests=()
for file in "${c_files[@]}"; do
	case $file in
	*.h) continue ;;
	tests/*) tests+=("$file") ;;
	*) product+=("$file") ;;
	esac
	sources+=("$file")
done

is_there() {
	command -v "$1" >/dev/null || { echo "  lint: $1 is not installed, left out"; return 1; }
}
# Its output only where it found something: some tools count suppressed warnings aloud.
# shellcheck disable=SC2317 # xargs calls it
quiet_unless_wrong() {
	local output
	output=$("$@" 2>&1) || { printf '%s\n' "$output"; return 1; }
}
export -f quiet_unless_wrong
# each COMMAND… : FILE…, one process a file, as many at once as there are processors
each() {
	local command=()
	while [ "$1" != : ]; do command+=("$1"); shift; done
	shift
	printf '%s\0' "$@" | xargs -0 -P "$(nproc)" -I {} \
		bash -c 'quiet_unless_wrong "$@"' lint "${command[@]}" || status=1
}

# off: parameters of one type side by side, conversions that -Wconversion judges, names of the system,
# assignments in conditions; a chain of conditions where two have one answer and the order counts
# (branch-clone); sizeof of an array's element that is a pointer (sizeof-expression, up to clang-tidy
# 17); va_list, which clang 14 takes for uninitialized between files; "use memcpy_s"; structs ordered
# by size instead of for the reader (Padding)
checks='-*,bugprone-*,clang-analyzer-*'
checks+=',-bugprone-easily-swappable-parameters,-bugprone-narrowing-conversions'
checks+=',-bugprone-reserved-identifier,-bugprone-assignment-in-if-condition'
checks+=',-bugprone-branch-clone,-bugprone-sizeof-expression,-clang-analyzer-valist.Uninitialized'
checks+=',-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling'
checks+=',-clang-analyzer-optin.performance.Padding'
# off in tests: SQL in several string literals, macros that stand for initializers, structs compared
# byte by byte to prove them untouched, buffers of bytes that are no strings, strcpy into the test's
# own arrays
test_checks=$checks,-bugprone-suspicious-missing-comma,-bugprone-macro-parentheses
test_checks+=,-bugprone-suspicious-memory-comparison,-bugprone-not-null-terminated-result
test_checks+=,-clang-analyzer-security.insecureAPI.strcpy

tidy() {
	local wanted=$1
	shift
	each clang-tidy --quiet --warnings-as-errors='*' "--checks=$wanted" {} -- "${flags[@]}" : "$@"
}

# off: readdir and getpwnam, which are safe as they are used here (readdir(3): its stream is not
# shared; getpwnam(3): one thread)
check_with_cppcheck() {
	cppcheck --quiet --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
		-j "$(nproc)" --library=posix --std=c11 --suppress=missingIncludeSystem \
		--suppress=readdirCalled --suppress=getpwnamCalled "${include[@]}" "${sources[@]}" ||
		status=1
}

# off: leaks, which gcc 12 sees in everything that is handed out by a pointer in a struct; the tests
# of failing allocations, ASan and valgrind look for them in earnest. Tests are left out: where
# memory ends, they may crash.
analyze() {
	each gcc -O1 -fanalyzer -Wno-analyzer-malloc-leak -Werror "${flags[@]}" -c -o /dev/null {} \
		: "$@"
}

include=()
for flag in "${flags[@]}"; do
	[[ $flag != -I* ]] || include+=("$flag")
done
if is_there "${CLANG_FORMAT:-clang-format}"; then
	"${CLANG_FORMAT:-clang-format}" --dry-run -Werror "${c_files[@]}" || status=1
fi
! is_there cppcheck || check_with_cppcheck
if is_there clang-tidy; then
	tidy "$checks" "${product[@]}"
	tidy "$test_checks" "${tests[@]}"
fi
! is_there gcc || analyze "${product[@]}"
! is_there shellcheck || shellcheck "${shell_files[@]}" || status=1
exit $status
