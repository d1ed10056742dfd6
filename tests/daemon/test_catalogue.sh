#!/usr/bin/env bash
# The message catalogue against the source, and against journalctl, which has to take it. Prints TAP.
set -euo pipefail

cd "${LEASE_SOURCE:?run it by tests/run.sh}"
catalogue=systemd/lease-reconciler.catalog
root=$(mktemp -d "${TMPDIR:-/tmp}/lease-catalogue-XXXXXX")
trap 'rm -rf "$root"' EXIT

# Fails with the lines that only one of the two has.
same() { # FILE FILE
	diff "$1" "$2"
}

every_message_has_an_entry_and_every_entry_a_message() {
	same <(grep -oE '"[0-9a-f]{32}"' daemon/journal.c | tr -d '"' | sort) \
		<(sed -n 's/^-- //p' $catalogue | sort)
}

# Each has its header, then what it means, then what to do: two paragraphs at least.
every_entry_is_whole() {
	awk '
		function judge() {
			if (id == "") return
			if (!subject || !defined || !documented) { print id ": a header is missing"; bad = 1 }
			if (paragraphs < 2) { print id ": says not what to do"; bad = 1 }
		}
		/^-- / { judge(); id = $2; subject = defined = documented = paragraphs = 0; blank = 0; next }
		/^Subject: ./ { subject = 1; next }
		/^Defined-By: lease-reconciler$/ { defined = 1; next }
		/^Documentation: man:/ { documented = 1; next }
		/^$/ { blank = 1; next }
		{ paragraphs += blank; blank = 0 }
		END { judge(); exit bad }
	' $catalogue
}

only_fields_that_are_sent_are_filled_in() {
	local fields
	fields=$(grep -oE 'add_(field|number)\(&entry, "[A-Z_]+"' daemon/journal.c | cut -d'"' -f2)
	same /dev/null <(grep -oE '@[A-Z_]+@' $catalogue | tr -d @ | sort -u | grep -vxF "$fields")
}

manual_pages_are_there() {
	local page
	while read -r page; do
		[ -e "docs/man/$page" ] || { echo "there is no $page"; return 1; }
	done < <(sed -nE 's/^Documentation: man:(.*)\((.)\)$/\1.\2/p' $catalogue | sort -u)
}

journalctl_takes_it() {
	mkdir -p "$root/usr/lib/systemd/catalog"
	cp $catalogue "$root/usr/lib/systemd/catalog"
	same /dev/null <(journalctl --root="$root" --update-catalog 2>&1)
	same <(paste -d' ' <(sed -n 's/^-- //p' $catalogue) \
		<(sed -n 's/^Subject: /lease-reconciler: /p' $catalogue) | sort) \
		<(journalctl --root="$root" --list-catalog | sort)
}

tests=(
	every_message_has_an_entry_and_every_entry_a_message
	every_entry_is_whole
	only_fields_that_are_sent_are_filled_in
	manual_pages_are_there
	journalctl_takes_it
)

echo "1..${#tests[@]}"
for index in "${!tests[@]}"; do
	# Not as a condition: within one a failing command would not end the test.
	set +e
	output=$(set -e; exec 2>&1; "${tests[index]}")
	status=$?
	set -e
	if [ $status = 0 ]; then
		echo "ok $((index + 1)) - ${tests[index]}"
	else
		echo "not ok $((index + 1)) - ${tests[index]}"
		printf '# %s\n' "${output//$'\n'/$'\n'# }"
	fi
done
