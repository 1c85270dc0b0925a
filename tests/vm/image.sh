#!/usr/bin/env bash
# Makes the virtual machine the tests boot: Debian 12 with systemd as pid 1, cgroup v2 and nothing of ours, once per kernel.
# From Debian's packages only; root only. Prints the folder it is in.
#
#     tests/vm/image.sh [--kernel 6.12|6.1] [--again]
#
# The folder is $VM_CACHE/<kernel>, by default below /var/cache/capsule-broker-vm: `vmlinuz`, `initrd`, `disk`. What is there is
# used again unless --again is given or this script has changed.
set -euo pipefail

kernel=6.12
again=
while [ $# -gt 0 ]; do
    case $1 in
        --kernel) kernel=$2; shift 2 ;;
        --again) again=yes; shift ;;
        *) sed -n '5s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
case $kernel in
    6.12) meta=linux-image-6.12-cloud-amd64 ;;
    6.1) meta=linux-image-cloud-amd64 ;;
    *) echo "vm image: no kernel called $kernel (6.12 or 6.1)" >&2; exit 2 ;;
esac
[ "$(id -u)" = 0 ] || { echo "vm image: needs root" >&2; exit 1; }

self=$(realpath "$0")
folder=${VM_CACHE:-/var/cache/capsule-broker-vm}/$kernel
stamp=$(sha256sum "$self" | cut -d' ' -f1)
if [ -z "$again" ] && [ "$(cat "$folder/made-by" 2>/dev/null)" = "$stamp" ]; then
    echo "$folder"
    exit 0
fi

say() { echo "vm image: $*" >&2; }

tools=(qemu-system-x86 seabios mmdebstrap e2fsprogs cpio xz-utils zstd busybox-static kmod)
missing=()
for package in "${tools[@]}"; do
    dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
if [ "${#missing[@]}" -gt 0 ]; then
    say "installing ${missing[*]}"
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# The sources of this machine where it is a Debian 12 itself, else the public ones.
sources=(
    "deb http://deb.debian.org/debian bookworm main"
    "deb http://deb.debian.org/debian-security bookworm-security main"
)
own=$(grep -lsE '^Suites:.*bookworm|^deb .*bookworm[ /]' /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list | head -1 || true)
if [ -n "$own" ]; then sources=("$own"); fi

work=$(mktemp -d "${TMPDIR:-/var/tmp}/vm-image.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
chmod 0755 "$work"
cd "$work"

say "bootstrapping Debian 12"
guest=systemd,systemd-sysv,dbus,udev,kmod,procps,util-linux,iproute2,e2fsprogs,libgcc-s1,ca-certificates,apparmor,python3-minimal,curl
mmdebstrap --quiet --mode=root --variant=minbase --include="$guest" \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    bookworm root "${sources[@]}"

# The kernel is taken out of its package: the guest needs neither a boot loader nor the tools that make an initrd.
say "kernel $kernel"
image=$(apt-cache depends "$meta" | sed -n 's/^ *Depends: \(linux-image[^ ]*\)$/\1/p' | head -1)
[ -n "$image" ] || { say "no package $meta in this machine's sources"; exit 1; }
apt-get download -qq "$image"
dpkg-deb -x "$image"_*.deb kernel
release=$(ls kernel/lib/modules)
mkdir -p root/lib/modules
cp -a "kernel/lib/modules/$release" root/lib/modules/
for unused in infiniband gpu hid media usb iio staging scsi ata video nvdimm; do
    rm -rf "root/lib/modules/$release/kernel/drivers/$unused"
done
depmod -b root "$release"

# Enough to find the disk: Debian's kernels have virtio and ext4 as modules.
modules=(virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk
    crc16 crc32c_generic mbcache jbd2 ext4)
mkdir -p ird/bin ird/dev ird/mod ird/root
cp /bin/busybox ird/bin/
for module in "${modules[@]}"; do
    find "kernel/lib/modules/$release" -name "$module.ko*" -exec cp {} ird/mod/ \;
done
for packed in ird/mod/*.xz; do [ ! -e "$packed" ] || xz -d "$packed"; done
for packed in ird/mod/*.zst; do [ ! -e "$packed" ] || zstd -q -d --rm "$packed"; done
cat >ird/init <<END
#!/bin/busybox sh
b=/bin/busybox
\$b mount -t devtmpfs dev /dev
for module in ${modules[*]}; do
    [ ! -e /mod/\$module.ko ] || \$b insmod /mod/\$module.ko
done
tries=0
while [ ! -b /dev/vda ] && [ \$tries -lt 100 ]; do \$b sleep 0.1; tries=\$((tries + 1)); done
\$b mount -t ext4 /dev/vda /root
exec \$b switch_root /root /lib/systemd/systemd
END
chmod +x ird/init
(cd ird && find . | cpio --create --format=newc --quiet | gzip -1) >initrd

echo capsule-vm >root/etc/hostname
: >root/etc/fstab
echo '127.0.0.1 localhost capsule-vm' >root/etc/hosts
units=root/etc/systemd/system
for unit in getty@.service serial-getty@.service systemd-timesyncd.service e2scrub_reap.service apt-daily.timer \
    apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer systemd-pcrphase.service \
    systemd-pcrphase-sysinit.service; do
    ln -sf /dev/null "$units/$unit"
done
mkdir -p root/etc/systemd/journald.conf.d root/etc/systemd/system.conf.d "$units/graphical.target.wants"
printf '[Journal]\nStorage=volatile\n' >root/etc/systemd/journald.conf.d/vm.conf
printf '[Manager]\nDefaultTimeoutStopSec=15s\nShowStatus=no\n' >root/etc/systemd/system.conf.d/vm.conf
# /dev/vdb is a tar with what is to be run, /dev/vdc takes a tar of what came of it, the second serial line is its output.
cat >root/usr/local/sbin/vm-payload <<'END'
#!/bin/bash
exec >/dev/ttyS1 2>&1 </dev/null
mkdir -p /payload /out
tar -C /payload -xf /dev/vdb
cd /payload
export OUT=/out HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
timeout -k 5 "$(cat seconds)" bash ./run.sh
status=$?
journalctl -b --no-pager >/out/journal.txt 2>/dev/null
tar -C /out -cf /dev/vdc .
sync
echo "vm-payload-status $status"
systemctl --no-block poweroff
END
chmod +x root/usr/local/sbin/vm-payload
cat >"$units/vm-payload.service" <<'END'
[Unit]
Description=What the host has to run
After=multi-user.target

[Service]
Type=oneshot
ExecStart=/usr/local/sbin/vm-payload
TimeoutStartSec=infinity
KillMode=process
END
ln -sf ../vm-payload.service "$units/graphical.target.wants/vm-payload.service"
ln -sf /lib/systemd/system/graphical.target "$units/default.target"

say "disk"
truncate -s 1800M disk
mkfs.ext4 -q -F -O ^has_journal,^metadata_csum -m 0 -d root disk

rm -rf "$folder"
mkdir -p "$folder"
cp --sparse=always disk "$folder/disk"
cp initrd "$folder/initrd"
cp "kernel/boot/vmlinuz-$release" "$folder/vmlinuz"
echo "$stamp" >"$folder/made-by"
say "made $folder (Linux $release)"
echo "$folder"
