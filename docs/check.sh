#!/usr/bin/env bash
# Checks that the documentation and the sources say the same:
#
# - README.md's C block is examples/minimal.c, to the byte
# - every public function, constant and struct member of lib/lease.h is in liblease(3)
# - every option of lease-reconciler, of leasectl and of each of its commands is in its man page
# - docs/state-machine.md is what `make pages` writes from lib/machine.c
# - every MESSAGE_ID of daemon/journal.c is in docs/running.md
# - every key of the sample configuration is in lease-reconciler.yaml(5)
# - every metric of daemon/metrics.c is in docs/observing.md, and no other there or in the sample
#   alerts; each of these is explained there
# - docs/field-cases.md names each test case_NN_… that there is, and no other, one for each case
# - docs/bench/peers.md names every peer of tests/peers/peers.c, with the version of its package
# - links to files in *.md lead somewhere; man pages have no fault that mandoc or groff finds
#
# LEASE_BUILD=build bash docs/check.sh; without built programs their options are left out, and it
# says so. Prints one line a fault; exits 1 if there is any.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${LEASE_BUILD:-build}
faults=0

fault() {
	echo "docs: $1"
	faults=$((faults + 1))
}

declare -A pages=()

# page_has PAGE GREP-ARGUMENT…: looks in a man page's source, escapes of names and options taken out.
page_has() {
	local page=$1
	shift
	[ -n "${pages[$page]:-}" ] ||
		pages[$page]=$(sed -e 's/\\-/-/g' -e 's/\\&//g' "docs/man/$page")
	grep -q "$@" <<<"${pages[$page]}"
}

check_readme() {
	awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' README.md |
		cmp -s - examples/minimal.c ||
		fault "README.md: the C block is not examples/minimal.c"
}

# The members of the structs of lease.h: what stands before ; and , between their braces.
members() {
	sed -n '/^struct lease_[a-z_]* {/,/^};/p' lib/lease.h | sed 's,/\*.*,,' |
		grep -oE '[a-z_]+(\[[^]]*\])?[;,]' | grep -oE '^[a-z_]+' | sort -u
}

check_library() {
	local name
	for name in $(members); do
		page_has liblease.3 -wF -- "$name" || fault "docs/man/liblease.3: $name is missing"
	done
	for name in $(grep -oE '\b(lease_[a-z_]+)\(' lib/lease.h | tr -d '(' | sort -u) \
		$(grep -oE '^	(LEASE_[A-Z_]+)' lib/lease.h) \
		$(awk '/^#define LEASE_[A-Z_]+ [^_]/ { print $2 }' lib/lease.h); do
		page_has liblease.3 -w -- "$name" || fault "docs/man/liblease.3: $name is missing"
	done
}

# check_options PAGE PROGRAM [COMMAND]: each --option of its --help stands in the page.
check_options() {
	local option page_name=$1
	shift
	for option in $("$@" --help | grep -oE -- '--[a-z][a-z-]+' | sort -u); do
		page_has "$page_name" -E -- "(^|[^a-z-])(-|Fl )?-?${option#--}([^a-z-]|\$)" ||
			fault "docs/man/$page_name: $option of '${*##*/}' is missing"
	done
}

check_programs() {
	local command
	if ! [ -x "$build/lease-reconciler" ] || ! [ -x "$build/leasectl" ]; then
		echo "docs: no programs in $build, their options are left out (set LEASE_BUILD)"
		return
	fi
	check_options lease-reconciler.8 "$build/lease-reconciler"
	check_options leasectl.1 "$build/leasectl"
	for command in $("$build/leasectl" --help |
		awk '/^Commands/ { inside = 1; next } /^$/ { inside = 0 } inside { print $1 }'); do
		page_has leasectl.1 -E "^\.(Ss|It) .*\b$command\b" ||
			fault "docs/man/leasectl.1: the command $command is missing"
		check_options leasectl.1 "$build/leasectl" "$command"
	done
}

check_pages() {
	if ! [ -x "$build/docs/state_machine" ]; then
		echo "docs: no $build/docs/state_machine, docs/state-machine.md is not compared"
		return
	fi
	"$build/docs/state_machine" | cmp -s - docs/state-machine.md ||
		fault "docs/state-machine.md is not what lib/machine.c says: run make pages"
}

check_messages() {
	local id
	for id in $(grep -oE '"[0-9a-f]{32}"' daemon/journal.c | tr -d '"'); do
		grep -q "\`$id\`" docs/running.md || fault "docs/running.md: MESSAGE_ID $id is missing"
	done
}

check_configuration() {
	local key
	for key in $(grep -oE '^ *#? *-? ?[a-z_]+:( |$)' config/lease-reconciler.yaml |
		tr -d ' #:-' | sort -u) password_file; do
		page_has lease-reconciler.yaml.5 -E "^\.(It )?Ic .*\b$key\b" ||
			fault "docs/man/lease-reconciler.yaml.5: $key is missing"
	done
}

metrics_in() {
	grep -ohE 'lease_reconciler_[a-z_]+' "$@" | sed -E 's/_(bucket|sum|count)$//' | sort -u
}

check_metrics() {
	local name page=docs/observing.md rules=config/lease-reconciler.rules.yaml there
	there=$(grep -v '^#define PREFIX' daemon/metrics.c | grep -oE 'PREFIX "[a-z_]+"' | cut -d'"' -f2 |
		sed 's/^/lease_reconciler_/' | sort -u)
	for name in $there; do
		grep -q "^| \`$name\` |" $page || fault "$page: $name is missing"
	done
	for name in $(comm -13 <(echo "$there") <(metrics_in $page $rules)); do
		fault "$page or $rules: there is no metric $name"
	done
	while read -r name; do
		grep -q "^|.*\`$name\`.*|" $page || fault "$page: the alert $name is missing"
	done < <(sed -n 's/^ *- alert: //p' $rules)
}

check_cases() {
	local page=docs/field-cases.md there told name number
	there=$(grep -hoE '^static void case_[0-9]{2}_[a-z0-9_]+\(' tests/*/test_*.c |
		grep -oE 'case_[a-z0-9_]+' | sort)
	# shellcheck disable=SC2016 # the page's backquotes
	told=$(grep -oE '`case_[0-9]{2}_[a-z0-9_]+`' "$page" | tr -d '`' | sort)
	for name in $(comm -23 <(echo "$there") <(echo "$told")); do
		fault "$page: the test $name is missing"
	done
	for name in $(comm -13 <(echo "$there") <(echo "$told")); do
		fault "$page: there is no test $name"
	done
	for number in $(grep -oE '^\| [0-9]{2} ' "$page" | tr -d '| '); do
		grep -q "^| $number .*\`case_${number}_" "$page" ||
			fault "$page: case $number has no test"
	done
}

check_peers() {
	local page=docs/bench/peers.md name package version
	while read -r name; do
		grep -q "^| \`$name\` |" $page || fault "$page: the peer $name is missing"
	done < <(grep -oE '\.name = "[a-z0-9_]+"' tests/peers/peers.c | cut -d'"' -f2)
	while read -r package version; do
		grep -qF "$package $version" $page || fault "$page: $package $version is missing"
	done < <(sed -n '/"dependencies"/,/}/s/^ *"\([a-z-]*\)": "\([0-9.]*\)".*/\1 \2/p' tests/peers/package.json)
	if grep -nE '"resolved"|https?://[^"]*registry' tests/peers/package-lock.json; then
		fault "tests/peers/package-lock.json names a registry"
	fi
}

check_links() {
	local file link
	for file in *.md docs/*.md docs/*/*.md; do
		for link in $(grep -oE '\]\([^)#:]+[)#]' "$file" | tr -d ']()#'); do
			[ -e "$(dirname "$file")/$link" ] || fault "$file: the link to $link leads nowhere"
		done
	done
}

check_form() {
	local file faulty
	for file in docs/man/*.[1-9]; do
		if command -v mandoc >/dev/null; then
			faulty=$(mandoc -T lint -W warning "$file" 2>&1 || true)
		elif command -v groff >/dev/null; then
			faulty=$(groff -mandoc -Tutf8 -ww -z "$file" 2>&1 || true)
		else
			continue
		fi
		[ -z "$faulty" ] || fault "$faulty"
	done
}

check_readme
check_library
check_programs
check_pages
check_messages
check_configuration
check_metrics
check_cases
check_peers
check_links
check_form
[ "$faults" = 0 ]
