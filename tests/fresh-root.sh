#!/usr/bin/env bash
# README's promise, tried: a fresh Debian 12 with nothing but the packages it names, a fresh clone, `make demo` and
# `make test`. Root only. Makes a root file system in a temporary folder and removes it.
#
#     tests/fresh-root.sh [--toolchain copy|debian] [--keep]
#
#   copy     (default) the toolchain that runs here, as an installer would have put it
#   debian   Debian's rustc-web and cargo-web
#
# The crates come from this machine's cargo cache, so that what is tested is the build and not a download.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
toolchain=copy
keep=
while [ $# -gt 0 ]; do
    case $1 in
        --toolchain) toolchain=$2; shift 2 ;;
        --keep) keep=yes; shift ;;
        *) sed -n '5,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
[ "$(id -u)" = 0 ] || { echo "NOT RUN: fresh root: needs root"; exit 0; }
case $toolchain in copy | debian) ;; *) echo "fresh-root: --toolchain copy or debian" >&2; exit 2 ;; esac

# The packages of README, and nothing else.
packages=build-essential,ca-certificates,git
if [ "$toolchain" = debian ]; then packages=$packages,rustc-web,cargo-web; fi

root=$(mktemp -d "${TMPDIR:-/var/tmp}/fresh-root.XXXXXX")
cleanup() {
    if [ -z "$keep" ]; then rm -rf --one-file-system "$root"; else echo "kept: $root"; fi
}
trap cleanup EXIT
chmod 0755 "$root"

# The sources this machine uses, if it is a Debian 12 itself; else the public ones.
sources=(
    "deb http://deb.debian.org/debian bookworm main"
    "deb http://deb.debian.org/debian bookworm-updates main"
    "deb http://deb.debian.org/debian-security bookworm-security main"
)
own=$(grep -lsE '^Suites:.*bookworm|^deb .*bookworm[ /]' /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list | head -1 || true)
if [ -n "$own" ]; then sources=("$own"); fi

if command -v mmdebstrap >/dev/null; then
    tool=mmdebstrap
    mmdebstrap --quiet --variant=minbase --include="$packages" bookworm "$root" "${sources[@]}"
elif command -v debootstrap >/dev/null; then
    tool=debootstrap
    # debootstrap reads one suite; rustc-web's newest version is in the security suite, added afterwards.
    first=build-essential,ca-certificates,git
    debootstrap --variant=minbase --include="$first" bookworm "$root" >/dev/null
    echo "deb http://deb.debian.org/debian-security bookworm-security main" >"$root/etc/apt/sources.list.d/security.list"
    if [ "$toolchain" = debian ]; then
        cp -L /etc/resolv.conf "$root/etc/resolv.conf"
        chroot "$root" apt-get update -qq
        chroot "$root" apt-get install -y -qq --no-install-recommends rustc-web cargo-web >/dev/null
    fi
else
    echo "NOT RUN: fresh root: neither mmdebstrap nor debootstrap is installed"
    exit 0
fi
echo "fresh-root: made by $tool, $(cat "$root/etc/debian_version"), toolchain: $toolchain"

git clone --quiet --no-hardlinks "$here" "$root/root/capsule-broker"
# No remote that exists on this machine only.
git -C "$root/root/capsule-broker" remote remove origin

cargo fetch --quiet --locked --manifest-path "$here/Cargo.toml"
mkdir -p "$root/root/.cargo"
cp -R "${CARGO_HOME:-$HOME/.cargo}/registry" "$root/root/.cargo/registry"
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if [ "$toolchain" = copy ]; then
    cp -R "$(rustc --print sysroot)" "$root/opt/rust"
    path=/opt/rust/bin:$path
fi

# Mount and PID namespaces of its own: whatever happens inside, nothing of it stays. The new root is pivoted to, not
# chrooted: a chrooted process may make no user namespace, which id-mapped mounts need.
export root path
unshare --mount --pid --fork --kill-child --propagation private bash -euo pipefail -c '
    mount --bind "$root" "$root"
    for place in proc sys dev run tmp; do mkdir -p "$root/$place"; done
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/run"
    mkdir -p "$root/old"
    cd "$root"
    pivot_root . old
    umount -l /old
    cd /root/capsule-broker
    exec env -i HOME=/root PATH="$path" CARGO_NET_OFFLINE=true CARGO_TERM_COLOR=never bash -euo pipefail -c "
        rustc --version
        make demo
        make test
    "
'
echo "fresh-root: make demo and make test passed in a Debian made by $tool"
