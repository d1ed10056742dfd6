# lease-reconciler: one plain GNU makefile for the library, the daemon, the command line, the
# examples and the tests. `make help` lists the targets.
#
# What it promises: every product lies under $(BUILD); objects of different compilers, flags or
# sanitizers are never mixed; `demo`, `check` and `bench` work on a machine where nothing is
# installed yet, because they prepare it first and only then let a second make look for packages.

VERSION := 0.1.0
# The library's binary interface: raise LIBRARY_MINOR with every added symbol, LIBRARY_MAJOR
# (and the node in lib/lease.map) only when a program built before would break.
LIBRARY_MAJOR := 1
LIBRARY_MINOR := 2

BUILD ?= build
SANITIZE ?=
WERROR ?=
TESTS ?=
FAULTS ?= 1000
ROUNDS ?= 1000
TIME ?= 600
SEED ?=
REPLAY ?=
ROWS ?= 100000
BENCH_CLUSTER ?= -c shared_buffers=2GB -c max_wal_size=16GB -c min_wal_size=4GB -c checkpoint_timeout=30min
PEERS_CLUSTER ?= -c shared_buffers=256MB -c max_wal_size=4GB -c checkpoint_timeout=30min -c autovacuum=off \
	-c shared_preload_libraries=pg_stat_statements

PREFIX ?= /usr/local
bindir ?= $(PREFIX)/bin
sbindir ?= $(PREFIX)/sbin
libdir ?= $(PREFIX)/lib
includedir ?= $(PREFIX)/include
mandir ?= $(PREFIX)/share/man
sysconfdir ?= $(if $(filter /usr,$(PREFIX)),/etc,$(PREFIX)/etc)
unitdir ?= $(call systemd_dir,systemdsystemunitdir,systemd/system)
sysusersdir ?= $(call systemd_dir,sysusersdir,sysusers.d)
catalogdir ?= $(call systemd_dir,catalogdir,systemd/catalog)

INSTALL ?= install
PKG_CONFIG ?= pkg-config
CLANG_FORMAT ?= clang-format

comma := ,
O := $(BUILD)$(if $(SANITIZE),/sanitize-$(subst $(comma),-,$(SANITIZE)))

# Looked up when first used, and once: before tests/prepare.sh ran there may be no pkg-config.
need_package = $(if $(shell $(PKG_CONFIG) --exists $(1) 2>&1 || echo missing),$(error \
	$(PKG_CONFIG) does not find $(1): run tests/prepare.sh, which installs what is missing))
package_cflags = $(foreach p,$(1),$(call need_package,$(p)))$(shell $(PKG_CONFIG) --cflags $(1))
package_libs = $(foreach p,$(1),$(call need_package,$(p)))$(shell $(PKG_CONFIG) --libs $(1))
once = $(eval $(1) := $(2))$($(1))
systemd_dir = $(or $(if $(filter /usr,$(PREFIX)),$(shell \
	$(PKG_CONFIG) systemd --variable=$(1) 2>/dev/null)),$(PREFIX)/lib/$(2))

# libev has no .pc file on Debian and Ubuntu.
PACKAGES_CFLAGS = $(call once,PACKAGES_CFLAGS,$(call package_cflags,libpq yaml-0.1 libsystemd))
LIBPQ_LIBS = $(call once,LIBPQ_LIBS,$(call package_libs,libpq))
DAEMON_LIBS = $(call once,DAEMON_LIBS,-lev $(call package_libs,yaml-0.1 libsystemd))
CLI_LIBS = $(call once,CLI_LIBS,$(call package_libs,yaml-0.1 libcrypto zlib))
CMOCKA_CFLAGS = $(call once,CMOCKA_CFLAGS,$(call package_cflags,cmocka))
CMOCKA_LIBS = $(call once,CMOCKA_LIBS,$(call package_libs,cmocka))

# CC, CPPFLAGS, CFLAGS, LDFLAGS and LDLIBS belong to whoever builds; what the code needs is here.
CFLAGS ?= -O2 -g
WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wvla \
	-Wundef $(if $(WERROR),-Werror)
ifeq ($(SANITIZE),)
# The C library warns about fortification without optimization, so it goes along with -O only.
HARDENING = -fstack-protector-strong $(if $(filter-out -O0,$(filter -O%,$(CFLAGS))),\
	-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
LINK_CHECKS := -Wl,-z,defs
else
HARDENING := -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer
endif
COMPILE = $(CC) -std=gnu11 -pthread $(WARNINGS) $(HARDENING) -D_GNU_SOURCE \
	-DLEASE_VERSION_STRING='"$(VERSION)"' -Ilib -I$(O)/gen $(PACKAGES_CFLAGS) $(CPPFLAGS) $(CFLAGS)
LINK = $(CC) -pthread $(HARDENING) $(CFLAGS) -Wl,-z,relro,-z,now -Wl,--as-needed $(LDFLAGS)

objects = $(patsubst %.c,$(O)/obj/%.o,$(1))
LIBRARY_OBJECTS := $(call objects,$(sort $(wildcard lib/*.c))) $(O)/obj/gen/sql.o
DAEMON_OBJECTS := $(call objects,$(sort $(wildcard daemon/*.c)))
CLI_OBJECTS := $(call objects,$(sort $(wildcard cli/*.c))) $(O)/obj/gen/migrations.o
EXAMPLE_OBJECTS := $(call objects,$(sort $(wildcard examples/*.c)))
SUPPORT_OBJECTS := $(call objects,$(sort $(wildcard tests/support/*.c))) $(O)/obj/gen/migrations.o
TEST_OBJECTS := $(call objects,$(sort $(wildcard tests/*/test_*.c)))
BENCH_OBJECTS := $(call objects,$(sort $(wildcard tests/bench/*.c)))
PEERS_OBJECTS := $(call objects,$(sort $(wildcard tests/peers/*.c)))
PAGE_OBJECTS := $(call objects,$(wildcard docs/*.c))
TORTURE_OBJECTS := $(call objects,$(sort $(filter-out tests/torture/test_%,\
	$(wildcard tests/torture/*.c))))
FUZZ_TARGETS := config results arguments text
FUZZ_OBJECTS := $(call objects,$(FUZZ_TARGETS:%=tests/fuzz/%.c))
ALL_OBJECTS := $(sort $(LIBRARY_OBJECTS) $(DAEMON_OBJECTS) $(CLI_OBJECTS) $(EXAMPLE_OBJECTS) \
	$(SUPPORT_OBJECTS) $(TEST_OBJECTS) $(FUZZ_OBJECTS) $(BENCH_OBJECTS) $(PEERS_OBJECTS) \
	$(TORTURE_OBJECTS) $(PAGE_OBJECTS))

SONAME := liblease.so.$(LIBRARY_MAJOR)
LIBRARY_FILE := $(SONAME).$(LIBRARY_MINOR)
LIBRARY := $(if $(wildcard lib/*.c),$(addprefix $(O)/,liblease.a liblease.so))
DAEMON := $(if $(wildcard daemon/main.c),$(O)/lease-reconciler)
CLI := $(if $(wildcard cli/*.c),$(O)/leasectl)
EXAMPLES := $(patsubst $(O)/obj/%.o,$(O)/%,$(EXAMPLE_OBJECTS))
TEST_PROGRAMS := $(patsubst $(O)/obj/%.o,$(O)/%,$(TEST_OBJECTS))
BENCH := $(if $(BENCH_OBJECTS),$(O)/tests/bench/bench)
PEERS := $(if $(PEERS_OBJECTS),$(O)/tests/peers/peers)
PAGES := $(patsubst $(O)/obj/%.o,$(O)/%,$(PAGE_OBJECTS))
TORTURE := $(if $(TORTURE_OBJECTS),$(addprefix $(O)/tests/torture/,torture torture-worker))

# Tests may be shell scripts, too.
TEST_SCRIPTS := $(patsubst tests/%.sh,$(O)/tests/%,$(sort $(wildcard tests/*/test_*.sh)))

# TESTS='store/test_x daemon' picks single programs and whole folders.
# The scripts come first: they wait more than they work.
ALL_TESTS := $(patsubst $(O)/tests/%,%,$(TEST_SCRIPTS) $(TEST_PROGRAMS))
PICKED_TESTS := $(if $(TESTS),$(foreach t,$(TESTS),$(or $(filter $(t) $(t)/%,$(ALL_TESTS)),\
	$(error TESTS: there is no test "$(t)"; there are: $(ALL_TESTS)))),$(ALL_TESTS))

# libfaketime and valgrind do not get along; random commands and races by the thousand take hours.
NOT_UNDER_VALGRIND := store/test_clock store/test_property store/test_races
# gcov's own code at a program's end does not mind that there is no memory.
NOT_UNDER_COVERAGE := daemon/test_allocations cli/test_allocations

.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: all lib daemon cli examples tests demo check bench bench-quick bench-record bench-peers torture model property service-check \
	service-check-deb dist deb fresh fuzz fuzzers valgrind coverage demo-run check-run bench-run bench-quick-run \
	bench-peers-run torture-run model-run property-run valgrind-run races races-run pages format lint install uninstall clean \
	help FORCE

all: lib daemon cli examples	## library, daemon, command line and examples (the default)
lib: $(LIBRARY)
daemon: $(DAEMON)
cli: $(CLI)
examples: $(EXAMPLES)
tests: all $(TEST_PROGRAMS) $(TEST_SCRIPTS) $(BENCH) $(PEERS) $(TORTURE) $(PAGES)	## build the test programs and the bench, run nothing

fuzz:	## random input for the parsers, by clang's libFuzzer: TIME=600 seconds each, FUZZ=results for one
	@LEASE_BUILD='$(O)' bash tests/prepare.sh hardening
	@$(MAKE) --no-print-directory CC=clang CFLAGS='-O1 -g' \
		SANITIZE=address,undefined,fuzzer-no-link fuzzers
	@exec bash tests/fuzz/fuzz.sh '$(BUILD)/sanitize-address-undefined-fuzzer-no-link' '$(TIME)' \
		$(or $(FUZZ),$(FUZZ_TARGETS))
valgrind:	## the store and daemon tests, daemons included, under valgrind (takes long): TESTS
	@LEASE_BUILD='$(O)' bash tests/prepare.sh hardening
	@$(MAKE) --no-print-directory TESTS='$(or $(TESTS),store daemon)' valgrind-run

coverage:	## which lines the tests reach, with gcovr; fails below 95 % of the library (takes long)
	@LEASE_BUILD='$(O)' bash tests/prepare.sh hardening
	@TEST_TIMEOUT=3600 $(MAKE) --no-print-directory BUILD='$(BUILD)/coverage' \
		CFLAGS='-O0 -g --coverage -fprofile-update=atomic' \
		TESTS='$(or $(TESTS),$(filter-out $(NOT_UNDER_COVERAGE),$(filter unit/% store/% fuzz/% \
		cli/% daemon/%,$(ALL_TESTS))))' check-run
	@exec bash tests/coverage.sh '$(BUILD)/coverage'

# The packages are looked for only by the second make, after prepare.sh brought them.
demo check bench bench-quick torture model property races:
	@LEASE_BUILD='$(O)' bash tests/prepare.sh
	@$(MAKE) --no-print-directory $@-run

demo:	## install what is missing, build, and watch a killed worker's run being finished by another
check:	## install what is missing, build, and run all tests (TESTS='store/test_x' for some)
bench:	## the same for the measurements; writes bench.json, .md and .svg into the build folder
bench-quick:	## the same on less data, in two minutes; writes bench-quick.json, .md and .svg
bench-record:	## make the figures of the last `make bench` those of docs/bench/
	cp '$(O)/bench.md' docs/bench/figures.md
	cp '$(O)/bench.svg' docs/bench/figures.svg
torture:	## the same for the fault campaign: FAULTS=1000, SEED (a new one each time)
model:	## check the models of the protocol and of the amnesty in all their states (docs/model.md)
races:	## the long form of two races: ROUNDS=1000 of two reconcilers, ten times as many of completions
property:	## the same for random commands against lease_decide: ROUNDS=1000, SEED=1, REPLAY=FILE

bench-peers:	## beside what others do, from npm and emulated: ROWS=100000; writes peers.json (docs/bench/peers.md)
	@LEASE_BUILD='$(O)' bash tests/prepare.sh peers
	@$(MAKE) --no-print-directory bench-peers-run

DIST = $(O)/lease-reconciler-$(VERSION).tar.gz
dist:	## pack the source as a tarball in the build folder
	@bash config/dist.sh '$(O)' $(VERSION)
deb:	## make the Debian packages, in deb/ of the build folder, and have lintian look at them
	@bash tests/prepare.sh packages
	@bash config/dist.sh '$(O)' $(VERSION) >/dev/null
	@bash config/package.sh '$(DIST)' '$(O)/deb' $(VERSION)
fresh:	## prove the README in a minimal Debian made for it (as root; takes long): demo, check, packages
	@bash tests/prepare.sh fresh
	@$(MAKE) --no-print-directory deb dist
	@bash tests/fresh.sh '$(DIST)' '$(O)/deb'

service-check:	## only the installed service under a systemd of its own (as root)
	@LEASE_REQUIRE_SERVICE_TESTS=1 $(MAKE) --no-print-directory check TESTS=service
service-check-deb: deb	## the same with the service installed from the packages
	@LEASE_SERVICE_PACKAGES='$(abspath $(O)/deb)' $(MAKE) --no-print-directory service-check

demo-run: all
	@LEASE_BUILD='$(abspath $(O))' LEASE_SOURCE='$(CURDIR)' exec bash examples/demo.sh
check-run: all $(PAGES) $(addprefix $(O)/tests/,$(PICKED_TESTS)) $(if $(filter torture/% daemon/test_failover,$(PICKED_TESTS)),$(TORTURE))
	@LEASE_BUILD='$(O)' bash docs/check.sh
	@LEASE_BUILD='$(O)' exec bash tests/run.sh $(addprefix $(O)/tests/,$(PICKED_TESTS))
valgrind-run: all $(addprefix $(O)/tests/,$(PICKED_TESTS)) $(TORTURE)
	@LEASE_BUILD='$(O)' exec bash tests/valgrind.sh $(addprefix $(O)/tests/,\
		$(filter-out $(NOT_UNDER_VALGRIND),$(PICKED_TESTS)))
run_bench = @LEASE_BUILD='$(abspath $(O))' LEASE_SOURCE='$(CURDIR)' \
	exec bash tests/cluster.sh with $(BENCH_CLUSTER) $(BENCH)
bench-run: all $(BENCH)
	$(run_bench) $(O)/bench.json
bench-quick-run: all $(BENCH)
	$(run_bench) --quick $(O)/bench-quick.json
bench-peers-run: all $(PEERS)
	@bash tests/peers/install.sh '$(O)/tests/peers'
	@LEASE_BUILD='$(abspath $(O))' LEASE_SOURCE='$(CURDIR)' exec bash tests/cluster.sh with $(PEERS_CLUSTER) \
		$(PEERS) --rows '$(ROWS)' $(O)/peers.json
torture-run: all $(TORTURE)
	@LEASE_BUILD='$(abspath $(O))' LEASE_SOURCE='$(CURDIR)' exec $(O)/tests/torture/torture \
		--faults '$(FAULTS)' $(if $(SEED),--seed '$(SEED)')

model-run:
	@CC='$(CC)' exec bash tests/model/run.sh
races-run: $(O)/tests/store/test_races
	@LEASE_BUILD='$(O)' LEASE_TEST_ROUNDS='$(ROUNDS)' TEST_FILTER='case_07*' TEST_TIMEOUT=100000 \
		bash tests/run.sh $<
	@LEASE_BUILD='$(O)' LEASE_TEST_ROUNDS='$(ROUNDS)0' TEST_FILTER='case_11*' TEST_TIMEOUT=100000 \
		bash tests/run.sh $<
property-run: $(O)/tests/store/test_property
	@LEASE_BUILD='$(O)' LEASE_TEST_ROUNDS='$(ROUNDS)' LEASE_TEST_SEED='$(SEED)' TEST_TIMEOUT=100000 \
		LEASE_TEST_REPLAY='$(and $(REPLAY),$(abspath $(REPLAY)))' exec bash tests/run.sh $<

# A different compiler or other flags make every object stale.
$(O)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(COMPILE) $(LDFLAGS))' | cmp -s - $@ || \
		printf '%s\n' '$(subst ','\'',$(COMPILE) $(LDFLAGS))' >$@

# Code that ships is held to -Wconversion; in tests it would only bury the cases under casts.
$(LIBRARY_OBJECTS): MODE = -fPIC -fvisibility=hidden -Wconversion
$(DAEMON_OBJECTS) $(CLI_OBJECTS) $(EXAMPLE_OBJECTS) $(PAGE_OBJECTS): MODE = -fPIE -Wconversion
$(sort $(SUPPORT_OBJECTS) $(TEST_OBJECTS) $(FUZZ_OBJECTS) $(BENCH_OBJECTS) $(PEERS_OBJECTS) \
	$(TORTURE_OBJECTS)): \
	MODE = -fPIE $(CMOCKA_CFLAGS) \
	-Idaemon -Icli -Itests/support -Itests/bench
$(O)/obj/gen/migrations.o: MODE = -fPIE

$(O)/obj/%.o: %.c $(O)/flags | $(O)/gen/sql.h $(O)/gen/migrations.h
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(COMPILE) $(MODE) -MMD -MP -c -o $@ $<
$(O)/obj/gen/%.o: $(O)/gen/%.c $(O)/flags
	@mkdir -p $(@D)
	@$(COMPILE) $(MODE) -MMD -MP -c -o $@ $<

# The folders are prerequisites too: a removed or added file changes them.
$(O)/gen/sql.c $(O)/gen/sql.h &: lib/embed.sh $(wildcard lib/sql lib/sql/*.sql)
	@bash lib/embed.sh sql $(O)/gen $(sort $(filter %.sql,$^))
$(O)/gen/migrations.c $(O)/gen/migrations.h &: lib/embed.sh $(wildcard migrations migrations/*.sql)
	@bash lib/embed.sh migrations $(O)/gen $(sort $(filter %.sql,$^))

archive = @rm -f $@ && $(AR) rcs $@ $(filter %.o,$^)
$(O)/liblease.a: $(LIBRARY_OBJECTS)
	$(archive)
# Archives, so that a program pulls in only the objects that it uses (leasectl: config).
$(O)/obj/daemon.a: $(filter-out $(O)/obj/daemon/main.o,$(DAEMON_OBJECTS))
	@mkdir -p $(@D)
	$(archive)
$(O)/tests/cli.a: $(filter-out $(O)/obj/cli/main.o,$(CLI_OBJECTS))
	@mkdir -p $(@D)
	$(archive)
# What the measurements stand on, without the bench itself: the comparison with others uses it, too.
$(O)/tests/bench.a: $(filter-out $(O)/obj/tests/bench/bench.o,$(BENCH_OBJECTS))
	@mkdir -p $(@D)
	$(archive)
$(O)/tests/support.a: $(SUPPORT_OBJECTS)
	@mkdir -p $(@D)
	$(archive)

$(O)/$(LIBRARY_FILE): $(LIBRARY_OBJECTS) lib/lease.map
	@echo "  LD      $@"
	@$(LINK) -shared $(LINK_CHECKS) -Wl,-soname,$(SONAME) -Wl,--version-script=lib/lease.map \
		-o $@ $(LIBRARY_OBJECTS) $(LIBPQ_LIBS) $(LDLIBS)
$(O)/liblease.so: $(O)/$(LIBRARY_FILE)
	@ln -sf $(LIBRARY_FILE) $(O)/$(SONAME)
	@ln -sf $(SONAME) $@

link_program = @mkdir -p $(@D) && echo "  LD      $@" && \
	$(LINK) -pie -o $@ $(filter %.o,$^) $(filter %.a,$^)
$(O)/lease-reconciler: $(DAEMON_OBJECTS) $(O)/liblease.a
	$(link_program) $(DAEMON_LIBS) $(LIBPQ_LIBS) $(LDLIBS)
$(O)/leasectl: $(CLI_OBJECTS) $(O)/obj/daemon.a $(O)/liblease.a
	$(link_program) $(CLI_LIBS) $(LIBPQ_LIBS) $(LDLIBS)
$(EXAMPLES): $(O)/examples/%: $(O)/obj/examples/%.o $(O)/liblease.a
	$(link_program) $(LIBPQ_LIBS) $(LDLIBS)

# Pages that are written from the sources: $(O)/docs/state_machine prints docs/state-machine.md.
$(PAGES): $(O)/docs/%: $(O)/obj/docs/%.o $(O)/liblease.a
	$(link_program) $(LIBPQ_LIBS) $(LDLIBS)
pages: $(PAGES)	## write the pages that come from the sources: docs/state-machine.md
	@$(O)/docs/state_machine >$(O)/docs/state-machine.md
	@cp $(O)/docs/state-machine.md docs/state-machine.md

TEST_ARCHIVES := $(addprefix $(O)/,tests/torture.a tests/support.a tests/cli.a obj/daemon.a liblease.a)
$(TEST_PROGRAMS): $(O)/tests/%: $(O)/obj/tests/%.o $(TEST_ARCHIVES)
	$(link_program) $(CMOCKA_LIBS) $(DAEMON_LIBS) $(CLI_LIBS_TOO) $(LIBPQ_LIBS) $(LDLIBS)
# Programs whose memory is refused on purpose: tests/support/allocations.h.
FAILING_ALLOCATIONS := $(foreach f,malloc calloc realloc reallocarray strdup strndup asprintf \
	open_memstream,-Wl,--wrap=$(f))
$(O)/tests/store/test_allocations: LDFLAGS += $(FAILING_ALLOCATIONS)
$(O)/tests/daemon/starved-reconciler: LDFLAGS += $(FAILING_ALLOCATIONS)
$(O)/tests/daemon/starved-reconciler: $(DAEMON_OBJECTS) $(O)/obj/tests/support/allocations.o \
		$(O)/liblease.a
	$(link_program) $(DAEMON_LIBS) $(LIBPQ_LIBS) $(LDLIBS)
$(O)/tests/daemon/test_allocations: | $(O)/tests/daemon/starved-reconciler
$(O)/tests/cli/starved-leasectl: LDFLAGS += $(FAILING_ALLOCATIONS)
$(O)/tests/cli/starved-leasectl: $(CLI_OBJECTS) $(O)/obj/tests/support/allocations.o \
		$(O)/obj/daemon.a $(O)/liblease.a
	$(link_program) $(CLI_LIBS) $(LIBPQ_LIBS) $(LDLIBS)
$(O)/tests/cli/test_allocations: | $(O)/tests/cli/starved-leasectl
$(O)/tests/fuzz/test_corpora: $(FUZZ_OBJECTS)
$(O)/tests/fuzz/test_corpora: CLI_LIBS_TOO = $(CLI_LIBS)
# By clang with SANITIZE=…,fuzzer-no-link alone: `make fuzz` sees to that.
FUZZERS := $(FUZZ_TARGETS:%=$(O)/tests/fuzz/fuzz_%)
fuzzers: $(FUZZERS)
$(FUZZERS): $(O)/tests/fuzz/fuzz_%: $(O)/obj/tests/fuzz/%.o tests/fuzz/libfuzzer.c $(TEST_ARCHIVES)
	@mkdir -p $(@D) && echo "  LD      $@"
	@$(COMPILE) -fsanitize=fuzzer -DFUZZ_TARGET=fuzz_$* -Itests/fuzz -o $@ tests/fuzz/libfuzzer.c \
		$(filter %.o %.a,$^) $(DAEMON_LIBS) $(CLI_LIBS) $(LIBPQ_LIBS) $(LDLIBS)
$(TEST_SCRIPTS): $(O)/tests/%: tests/%.sh
	@mkdir -p $(@D)
	@$(INSTALL) -m 755 $< $@
# What `make install` puts on a machine; made anew each time, because it is quick.
$(O)/tests/service/test_installed: | $(O)/tests/service/tree
.PHONY: $(O)/tests/service/tree
$(O)/tests/service/tree: all
	@mkdir -p $(@D) && rm -rf '$@'
	@$(MAKE) --no-print-directory install DESTDIR='$(abspath $@)' PREFIX=/usr \
		>'$@.log' 2>&1 || { cat '$@.log' >&2; exit 1; }
# It listens to what the library sends: tests/bench/verbs.c.
$(O)/tests/bench/bench: private LDFLAGS += $(foreach f,PQsendQueryParams PQpipelineSync,-Wl,--wrap=$(f))
$(O)/tests/bench/bench: $(O)/obj/tests/bench/bench.o $(O)/tests/bench.a $(TEST_ARCHIVES)
	$(link_program) $(CMOCKA_LIBS) $(DAEMON_LIBS) $(LIBPQ_LIBS) -lm $(LDLIBS)
$(O)/tests/peers/peers: $(PEERS_OBJECTS) $(O)/tests/bench.a $(TEST_ARCHIVES)
	$(link_program) $(CMOCKA_LIBS) $(DAEMON_LIBS) $(LIBPQ_LIBS) -lm $(LDLIBS)

$(O)/tests/torture/torture-worker: $(addprefix $(O)/obj/tests/torture/,worker.o schedule.o) \
		$(O)/liblease.a
	$(link_program) $(LIBPQ_LIBS) $(LDLIBS)
$(O)/tests/torture.a: $(addprefix $(O)/obj/tests/torture/,checker.o fleet.o proxy.o schedule.o)
	@mkdir -p $(@D)
	$(archive)
$(O)/tests/torture/torture: $(O)/obj/tests/torture/torture.o $(TEST_ARCHIVES)
	$(link_program) $(CMOCKA_LIBS) $(DAEMON_LIBS) $(LIBPQ_LIBS) $(LDLIBS)

C_FILES = $(sort $(wildcard lib/*.[ch] daemon/*.[ch] cli/*.[ch] docs/*.[ch] examples/*.[ch] tests/*/*.[ch]))
SHELL_FILES = $(sort $(wildcard .ci/run config/*.sh lib/*.sh docs/*.sh tests/*.sh tests/*/*.sh examples/*.sh))

format:	## rewrite the C sources in the project's layout (clang-format)
	$(CLANG_FORMAT) -i $(C_FILES)

lint: $(O)/gen/sql.h $(O)/gen/migrations.h	## look for faults with the tools that are there
	@CLANG_FORMAT='$(CLANG_FORMAT)' exec bash config/lint.sh '$(C_FILES)' '$(SHELL_FILES)' \
		-std=gnu11 -D_GNU_SOURCE -DLEASE_VERSION_STRING='"$(VERSION)"' -Ilib -Idaemon -Icli \
		-Itests/support -Itests/bench -I$(O)/gen $(PACKAGES_CFLAGS) $(CMOCKA_CFLAGS)

SUBSTITUTE = sed -e 's|@prefix@|$(PREFIX)|g' -e 's|@bindir@|$(bindir)|g' -e 's|@sbindir@|$(sbindir)|g' \
	-e 's|@libdir@|$(libdir)|g' -e 's|@includedir@|$(includedir)|g' \
	-e 's|@sysconfdir@|$(sysconfdir)|g' -e 's|@version@|$(VERSION)|g'
MAN_PAGES = $(wildcard docs/man/*.[1-9])
CONFIGURATION = $(DESTDIR)$(sysconfdir)/lease-reconciler.yaml
INSTALLED = $(sbindir)/lease-reconciler $(bindir)/leasectl $(addprefix $(libdir)/,liblease.a \
	$(LIBRARY_FILE) $(SONAME) liblease.so pkgconfig/liblease.pc) $(includedir)/lease.h \
	$(unitdir)/lease-reconciler.service $(sysusersdir)/lease-reconciler.conf \
	$(catalogdir)/lease-reconciler.catalog \
	$(foreach page,$(MAN_PAGES),$(mandir)/man$(subst .,,$(suffix $(page)))/$(notdir $(page)))

install: all	## install under PREFIX (DESTDIR, sysconfdir, unitdir, libdir … may be set)
	$(INSTALL) -D -m 755 $(O)/lease-reconciler '$(DESTDIR)$(sbindir)/lease-reconciler'
	$(INSTALL) -D -m 755 $(O)/leasectl '$(DESTDIR)$(bindir)/leasectl'
	$(INSTALL) -D -m 644 $(O)/liblease.a '$(DESTDIR)$(libdir)/liblease.a'
	$(INSTALL) -D -m 755 $(O)/$(LIBRARY_FILE) '$(DESTDIR)$(libdir)/$(LIBRARY_FILE)'
	ln -sf $(LIBRARY_FILE) '$(DESTDIR)$(libdir)/$(SONAME)'
	ln -sf $(SONAME) '$(DESTDIR)$(libdir)/liblease.so'
	$(INSTALL) -D -m 644 lib/lease.h '$(DESTDIR)$(includedir)/lease.h'
	@mkdir -p '$(DESTDIR)$(libdir)/pkgconfig' '$(DESTDIR)$(unitdir)' '$(DESTDIR)$(catalogdir)'
	$(SUBSTITUTE) lib/liblease.pc.in >'$(DESTDIR)$(libdir)/pkgconfig/liblease.pc'
	$(SUBSTITUTE) systemd/lease-reconciler.service >'$(DESTDIR)$(unitdir)/lease-reconciler.service'
	$(INSTALL) -D -m 644 systemd/lease-reconciler.sysusers \
		'$(DESTDIR)$(sysusersdir)/lease-reconciler.conf'
	$(SUBSTITUTE) systemd/lease-reconciler.catalog >'$(DESTDIR)$(catalogdir)/lease-reconciler.catalog'
	@for page in $(MAN_PAGES); do ( set -x; $(INSTALL) -D -m 644 "$$page" \
		'$(DESTDIR)$(mandir)'/man"$${page##*.}/$${page##*/}" ); done
	@if [ -e '$(CONFIGURATION)' ]; then echo '$(CONFIGURATION) is there already: left as it is'; \
	else set -x; $(INSTALL) -D -m 640 config/lease-reconciler.yaml '$(CONFIGURATION)'; fi
	@echo "Next, as root: systemd-sysusers && chgrp lease-reconciler $(sysconfdir)/lease-reconciler.yaml"
	@echo "and for explanations in the journal: journalctl --update-catalog"
	@echo "Then edit that file, and: systemctl daemon-reload && systemctl enable --now lease-reconciler"

uninstall:	## remove what install put there; the configuration stays
	rm -f $(foreach file,$(INSTALLED),'$(DESTDIR)$(file)')

clean:	## remove the build folder
	rm -rf '$(BUILD)'

help:	## this list
	@sed -n 's/^\([a-z-]*\):[^#]*##* *\(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
		awk -F'|' '$$2 != "" { printf "%-18s %s\n", $$1, $$2 }'
	@echo "  variables: BUILD, SANITIZE=address,undefined, WERROR=1, TESTS, CC, CFLAGS, LDFLAGS, PREFIX, DESTDIR"

-include $(ALL_OBJECTS:.o=.d)
