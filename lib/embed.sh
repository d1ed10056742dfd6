#!/usr/bin/env bash
# Turns SQL files into C strings at build time: the files stay the only source and run in psql.
#
#   embed.sh sql DIR FILE…          DIR/sql.h, DIR/sql.c: one string lease_sql_<file name> a file,
#                                   without comment lines and without the last semicolon
#   embed.sh migrations DIR FILE…   DIR/migrations.h, DIR/migrations.c: the files verbatim, with
#                                   version, name and SHA-256, ordered by version
#
# It never changes a migration by a byte: its checksum is the file's own.
set -euo pipefail
export LC_ALL=C

fail() {
	echo "embed.sh: $*" >&2
	exit 65
}

# One C literal a line of the file; a last line without a newline stays without one. `?` is escaped
# because two of them could begin a trigraph.
c_string() {
	local last='$!'
	if ! [ -s "$1" ]; then
		printf '\t""\n'
		return
	fi
	[ -n "$(tail -c 1 "$1")" ] || last=
	sed -e 's/\\/\\\\/g; s/"/\\"/g; s/?/\\?/g; s/\t/\\t/g; s/\r/\\r/g' \
		-e "$last"'s/$/\\n/' -e 's/.*/\t"&"/' "$1"
	[ -z "$last" ] || echo
}

no_nul() {
	[ "$(tr -d '\000' <"$1" | wc -c)" = "$(wc -c <"$1")" ] || fail "$1: holds a NUL byte"
}

embed_sql() {
	local file name
	{
		echo '/* Generated from lib/sql by lib/embed.sh: change the .sql files instead. */'
		echo '#ifndef LEASE_GEN_SQL_H'
		echo '#define LEASE_GEN_SQL_H'
		echo
		for file in "$@"; do
			name=${file##*/}
			name=${name%.sql}
			[[ $name =~ ^[a-z][a-z0-9_]*$ ]] || fail "$file: name it [a-z][a-z0-9_]*.sql"
			echo "extern const char lease_sql_${name}[];"
		done
		echo
		echo '#endif'
	} >"$folder/sql.h.new"
	{
		echo '/* Generated from lib/sql by lib/embed.sh: change the .sql files instead. */'
		echo '#include "sql.h"'
		# As libpq wants it: no lines that only comment, nothing after the last word. One awk for
		# all files, because starting a process for each is what would take the time.
		awk '
			function emit(   n, i, lines, line) {
				if (name == "")
					return
				sub(/[ \t\r\n]+$/, "", text)
				sub(/[ \t\r\n]*;$/, "", text)
				if (text == "") {
					print "embed.sh: " name ".sql: holds no statement" >"/dev/stderr"
					failed = 1
					exit 65
				}
				printf "\nconst char lease_sql_%s[] =\n", name
				n = split(text, lines, "\n")
				for (i = 1; i <= n; i++) {
					line = lines[i]
					gsub(/\\/, "&&", line)
					gsub(/["?]/, "\\\\&", line)
					gsub(/\t/, "\\t", line)
					gsub(/\r/, "\\r", line)
					printf "\t\"%s%s\n", line, i < n ? "\\n\"" : "\";"
				}
			}
			FNR == 1 {
				emit()
				name = FILENAME
				sub(/.*\//, "", name)
				sub(/\.sql$/, "", name)
				text = ""
			}
			!/^[ \t]*--/ { text = text $0 "\n" }
			END { if (!failed) emit() }' "$@"
	} >"$folder/sql.c.new"
}

embed_migrations() {
	local file name version previous=0
	cat >"$folder/migrations.h.new" <<-'END'
		/* Generated from migrations/ by lib/embed.sh: add a new .sql file there instead. */
		#ifndef LEASE_GEN_MIGRATIONS_H
		#define LEASE_GEN_MIGRATIONS_H

		struct lease_migration {
			int version;
			const char *name;     /* file name without .sql */
			const char *checksum; /* SHA-256 of the file, in hex */
			const char *sql;      /* the file, verbatim */
		};

		/* Ordered by version; one entry of zeros follows the last. */
		extern const struct lease_migration lease_migrations[];
		extern const int lease_migrations_count;

		#endif
	END
	{
		echo '/* Generated from migrations/ by lib/embed.sh: add a new .sql file there instead. */'
		echo '#include <stddef.h>'
		echo
		echo '#include "migrations.h"'
		echo
		echo 'const struct lease_migration lease_migrations[] = {'
		for file in "$@"; do
			name=$(basename "$file" .sql)
			[[ $name =~ ^([0-9]+)_[a-z0-9_]+$ ]] || fail "$file: name it 0001_some_words.sql"
			version=$((10#${BASH_REMATCH[1]}))
			[ "$version" -gt "$previous" ] || fail "$file: version $version is there already"
			previous=$version
			no_nul "$file"
			printf '\t{ %d, "%s", "%s",\n' "$version" "$name" "$(sha256sum <"$file" | cut -d' ' -f1)"
			c_string "$file"
			printf '\t},\n'
		done
		printf '\t{ 0, NULL, NULL, NULL },\n};\n'
		echo "const int lease_migrations_count = $#;"
	} >"$folder/migrations.c.new"
}

[ $# -ge 2 ] || fail 'usage: embed.sh sql|migrations DIR FILE…'
what=$1 folder=$2
shift 2
mkdir -p "$folder"
trap 'rm -f "$folder/$what.c.new" "$folder/$what.h.new"' EXIT
case $what in
sql) embed_sql "$@" ;;
migrations) embed_migrations "$@" ;;
*) fail "unknown kind '$what': sql or migrations" ;;
esac
mv "$folder/$what.h.new" "$folder/$what.h"
mv "$folder/$what.c.new" "$folder/$what.c"
