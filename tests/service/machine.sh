#!/usr/bin/env bash
# A machine of the tests' own: systemd as PID 1 in fresh namespaces, over a throw-away overlay of
# this machine's root. Programs and libraries are this machine's; processes, users' files, network,
# journal and cgroups are not.
#
#   machine.sh keep DIR TREE         boots it with the files of TREE laid over the root, and keeps
#                                    it until its standard input ends (run it in the background)
#   machine.sh wait DIR              until it has booted; prints why if it cannot
#   machine.sh in DIR COMMAND …      runs a command in it, with the command's exit code
#   machine.sh possible              goes all the way but for systemd itself: 0, or 1 and one line
#                                    that says what this machine does not allow
#
# DIR/share is /run/share in the machine. Needs root, and a kernel that lets it make namespaces and
# mount: neither an ordinary user nor a container without privileges can.
#
# It never changes anything of this machine: all that is written goes to memory of the machine's
# own, and when DIR's keeper ends, by whatever, processes, mounts and the cgroup end with it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
me=$here/machine.sh
machine_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
boot_seconds=60

fail() {
	echo "machine.sh: $1" >&2
	exit "${2:-70}"
}

use_folder() {
	[ -d "${1:-}" ] || fail "which DIR? it has to be there" 64
	dir=$(realpath "$1")
}

# -- outside: the keeper ---------------------------------------------------------------------------

# An own mount namespace first: the cgroup hierarchy is mounted there, whatever is mounted here.
keep() {
	mkdir -p "$dir/share"
	rm -f "$dir/pid" "$dir/ended"
	exec unshare --mount --propagation private -- bash "$me" _hold "$dir" "$@"
}

# The machine's root cgroup is a new one, so that what it does to cgroups stays below it.
hold() {
	local cgroup="$dir/cgroup/lease-machine-$$" machine watcher
	mkdir -p "$dir/cgroup"
	mount -t cgroup2 none "$dir/cgroup"
	mkdir "$cgroup"
	bash -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' _ "$cgroup" \
		unshare --fork --kill-child --pid --mount --uts --ipc --net --cgroup \
		--propagation private -- bash "$me" _enter "$dir" "$@" </dev/null >"$dir/console" 2>&1 &
	machine=$!
	(while read -r _; do :; done && kill -KILL "$machine") <&3 2>/dev/null &
	watcher=$!
	wait "$machine" 2>/dev/null || true
	touch "$dir/ended"
	kill "$watcher" 2>/dev/null || true
	forget_cgroup "$cgroup"
}

forget_cgroup() {
	local try
	for try in 1 2 3 4 5 6 7 8 9 10; do
		echo 1 >"$1/cgroup.kill" 2>/dev/null || true
		if find "$1" -depth -type d -exec rmdir {} + 2>/dev/null; then
			return
		fi
		sleep "0.$try"
	done
}

# -- inside: from the first process of the namespaces to systemd ------------------------------------

# What PID 1 runs until it becomes systemd (or, for a trial, the command that is given).
enter() {
	local tree=$1 root=$dir/memory/root pid
	shift
	# Read from the old /proc it is the number that this process has outside.
	read -r pid _ </proc/self/stat
	mkdir -p "$dir/memory"
	mount -t tmpfs -o mode=755 tmpfs "$dir/memory"
	mkdir "$dir"/memory/{upper,work,root}
	mount -t overlay overlay \
		-o "lowerdir=/,upperdir=$dir/memory/upper,workdir=$dir/memory/work" "$root"
	mount_kernel_folders "$root"
	mount_devices "$root/dev"
	remove_owners_settings "$root"
	# Where /lib is a symbolic link it stays one.
	tar -C "$tree" -c . | tar -C "$root" -x --keep-directory-symlink --no-same-owner
	mkdir "$root/run/share" "$root/run/old"
	mount --bind "$dir/share" "$root/run/share"
	echo "$pid" >"$dir/pid.new"
	mv "$dir/pid.new" "$dir/pid"
	cd "$root"
	pivot_root . run/old
	umount -l run/old
	rmdir run/old
	mount --make-rshared /
	exec env -i container=lease-machine PATH="$machine_path" "$@"
}

mount_kernel_folders() {
	mount -t proc proc "$1/proc"
	# The settings in there are partly the whole kernel's.
	mount --bind "$1/proc/sys" "$1/proc/sys"
	mount -o remount,bind,ro "$1/proc/sys"
	mount -t sysfs -o ro sysfs "$1/sys"
	mount -t cgroup2 cgroup2 "$1/sys/fs/cgroup"
	mount -t tmpfs -o mode=755,nosuid,nodev tmpfs "$1/run"
	mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$1/tmp"
}

# No device but those that every program may expect; the console is none.
mount_devices() {
	local device name major minor
	mount -t tmpfs -o mode=755,nosuid tmpfs "$1"
	mkdir "$1"/{pts,shm,mqueue}
	for device in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 console:1:3; do
		IFS=: read -r name major minor <<<"$device"
		mknod -m 666 "$1/$name" c "$major" "$minor"
	done
	mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$1/pts"
	mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$1/shm"
	mount -t mqueue mqueue "$1/mqueue"
	ln -s pts/ptmx "$1/ptmx"
	ln -s /proc/self/fd "$1/fd"
	for device in 0:stdin 1:stdout 2:stderr; do
		ln -s "fd/${device%:*}" "$1/${device#*:}"
	done
}

# What the owner of this machine installed or enabled plays no part in the tests, nor what
# generators make of it, and nothing that wants hardware or the whole kernel is started. The journal
# is in memory.
remove_owners_settings() {
	local unit
	rm -rf "$1/var/log/journal" "$1/etc/systemd/system" "$1"/etc/systemd/*.conf.d \
		"$1"/{usr/lib,usr/local/lib,etc}/systemd/system-generators \
		"$1"/usr{,/local}/lib/systemd/system/lease-reconciler.service* \
		"$1"/etc/lease-reconciler* "$1/usr/sbin/policy-rc.d"
	mkdir -p "$1/etc/systemd/system"
	for unit in systemd-{sysctl,modules-load,remount-fs,firstboot,repart,update-utmp,timesyncd}.service \
		systemd-{udevd,udev-trigger,hwdb-update,binfmt,random-seed,boot-random-seed,pstore}.service \
		systemd-journald-audit.socket dev-hugepages.mount proc-sys-fs-binfmt_misc.automount \
		sys-{fs-fuse-connections,kernel-config,kernel-debug,kernel-tracing}.mount; do
		ln -s /dev/null "$1/etc/systemd/system/$unit"
	done
	printf '[Unit]\nRequires=sysinit.target\nAfter=sysinit.target\n' \
		>"$1/etc/systemd/system/lease-machine.target"
}

# -- what the tests call -----------------------------------------------------------------------------

run_in() {
	local pid
	{ read -r pid <"$dir/pid"; } 2>/dev/null || fail "no machine runs in $dir" 69
	exec nsenter --target "$pid" --mount --uts --ipc --net --pid --cgroup --root --wd -- \
		env -i LANG=C.UTF-8 TERM=dumb SYSTEMD_PAGER= PATH="$machine_path" "$@"
}

wait_booted() {
	local deadline=$((SECONDS + boot_seconds)) state=
	while [ $SECONDS -lt $deadline ] && [ ! -e "$dir/ended" ]; do
		state=$("$me" in "$dir" systemctl is-system-running 2>/dev/null || true)
		case $state in
		running) return ;;
		degraded)
			"$me" in "$dir" systemctl --failed --plain --no-legend >&2
			fail 'a unit of the machine itself has failed'
			;;
		esac
		sleep 0.1
	done
	tail -n 20 "$dir/console" >&2
	fail "systemd has not come up ($state)"
}

# Its first complaint is the reason.
possible() {
	if [ "$(id -u)" != 0 ]; then
		echo 'needs root'
		return 1
	elif ! [ -x /lib/systemd/systemd ]; then
		echo 'there is no systemd here'
		return 1
	fi
	dir=$(mktemp -d "${TMPDIR:-/tmp}/lease-machine-XXXXXX")
	trap 'rm -rf "$dir"' EXIT
	mkdir "$dir/tree"
	mkfifo "$dir/endless"
	bash "$me" _try "$dir" "$dir/tree" <>"$dir/endless" >"$dir/keeper" 2>&1 || true
	[ "$(tail -n 1 "$dir/console" 2>/dev/null)" != entered ] || return 0
	echo "namespaces or mounts are not allowed here ($(cat "$dir/keeper" "$dir/console" 2>/dev/null |
		head -n 1))"
	return 1
}

init=(setpriv
	"--bounding-set=-sys_time,-sys_module,-sys_rawio,-syslog,-audit_control,-audit_read,-mac_admin,-mac_override"
	/lib/systemd/systemd --unit=lease-machine.target --show-status=no)

action=${1:-}
[ $# = 0 ] || shift
case $action in
possible) possible ;;
keep) use_folder "${1:-}"; keep "${2:?which TREE?}" "${init[@]}" ;;
_try) use_folder "$1"; keep "$2" echo entered ;;
_hold) use_folder "$1"; shift; exec 3<&0; hold "$@" ;;
_enter) use_folder "$1"; shift; enter "$@" ;;
wait) use_folder "${1:-}"; wait_booted ;;
in) use_folder "${1:-}"; shift; run_in "$@" ;;
*) fail 'usage: machine.sh keep DIR TREE, wait DIR, in DIR COMMAND, possible' 64 ;;
esac
