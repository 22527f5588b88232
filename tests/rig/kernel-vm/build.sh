#!/bin/sh
# Builds `vmlinuz`, `initrd` and `packages` in the current directory from the Debian packages in ./packages.d.
# Nothing is installed: packages are unpacked, and the files of the machine are copied from them.
# MORE_PROGRAMS and MORE_MODULES are added. Modules in ./extra are added to those of the kernel.
set -eu

# Programs of the machine in addition to busybox. Their libraries are copied, too.
programs="
usr/sbin/rpc.mountd usr/sbin/rpc.nfsd usr/sbin/exportfs usr/sbin/nfsdcld
sbin/mount.nfs sbin/umount.nfs sbin/rpcbind sbin/rpc.statd
sbin/mke2fs sbin/mkfs.xfs sbin/mkfs.btrfs bin/btrfs usr/sbin/setquota usr/sbin/repquota
sbin/quotaon sbin/quotaoff usr/sbin/xfs_quota usr/sbin/xfs_io usr/bin/chattr
bin/mount usr/bin/setpriv
${MORE_PROGRAMS:-}
"
# Drivers, file systems, NFS server and client. Dependencies are added; checksum modules are loaded by name at run time.
modules="virtio_pci virtio_net loop ext4 xfs btrfs quota_v2 crc32c_generic sunrpc nfs nfsv3 nfsv4 nfsd rpcsec_gss_krb5
${MORE_MODULES:-}"

from=$PWD/unpacked
to=$PWD/root
mkdir "$from" "$to"
for package in packages.d/*.deb; do
    dpkg-deb -x "$package" "$from"
    basename "$package" .deb
done >packages

mkdir -p "$to/bin" "$to/sbin" "$to/usr" "$to/etc" "$to/lib64" "$to/proc" "$to/sys" "$to/dev" "$to/run" "$to/tmp"
# One directory for all programs, as in a merged /usr.
ln -s ../bin ../sbin ../lib64 "$to/usr/"
ln -s lib64 "$to/lib"
busybox=$from/bin/busybox
[ -x "$busybox" ] || busybox=$from/usr/bin/busybox
cp "$busybox" "$to/bin/busybox"
for applet in $("$busybox" --list); do
    [ "$applet" = busybox ] || ln -s busybox "$to/bin/$applet"
done

# The loader of the unpacked C library lists the libraries of a program, and finds only unpacked ones.
loader=$(find "$from" -name 'ld-linux-x86-64.so.2' -type f -o -name 'ld-linux-x86-64.so.2' -type l | grep x86_64-linux-gnu | head -n 1)
paths=$from/lib/x86_64-linux-gnu:$from/usr/lib/x86_64-linux-gnu:$from/usr/lib/x86_64-linux-gnu/libnss
cp -L "$loader" "$to/lib64/ld-linux-x86-64.so.2"
for program in $programs; do
    [ -e "$from/$program" ] || program=usr/$program
    rm -f "$to/sbin/${program##*/}"
    cp -L "$from/$program" "$to/sbin/"
    "$loader" --library-path "$paths" --list "$from/$program" >libraries
    if grep 'not found' libraries >&2; then
        echo "$program: the package of one of its libraries is missing" >&2
        exit 1
    fi
    while read -r name _ file _; do
        name=${name##*/}
        case $file in
        "$from"/*) [ -e "$to/lib64/$name" ] || cp -L "$file" "$to/lib64/$name" ;;
        "") ;;
        *) echo "$program: library $name is not from the packages: $file" >&2; exit 1 ;;
        esac
    done <libraries
done
ln -sf mke2fs "$to/sbin/mkfs.ext4"
cp "$from"/etc/netconfig "$from"/etc/protocols "$from"/etc/rpc "$from"/etc/services "$from"/etc/mke2fs.conf "$to/etc/"

release=$(basename "$from"/*lib/modules/*)
[ "$release" != '*' ] || release=$(basename "$from"/usr/lib/modules/*)
tree=$from/lib/modules/$release
[ -d "$tree" ] || tree=$from/usr/lib/modules/$release
cp "$from/boot/vmlinuz-$release" vmlinuz
[ ! -d extra ] || cp -r extra "$tree/"
find "$tree" -name '*.ko.xz' -exec "$busybox" unxz {} +
mkdir -p "$to/lib64/modules/$release"
"$busybox" depmod -b "$(dirname "$(dirname "$(dirname "$tree")")")" "$release"
# Lines of modules.dep are "path: dependencies". Names may contain `-` where modprobe accepts `_`.
for module in $modules; do
    pattern=$(echo "$module" | sed 's/_/[-_]/g')
    if ! grep -E "(^|/)$pattern\.ko[^ ]*:" "$tree/modules.dep"; then
        # Otherwise it must be built into the kernel.
        grep -qE "/$pattern\.ko" "$tree/modules.builtin" || { echo "the kernel has no module $module" >&2; exit 1; }
    fi
done | tr -d : | tr ' ' '\n' | sort -u >module-files
while read -r file; do
    [ -n "$file" ] || continue
    mkdir -p "$to/lib64/modules/$release/$(dirname "$file")"
    cp "$tree/$file" "$to/lib64/modules/$release/$file"
done <module-files
cp "$tree/modules.builtin" "$tree/modules.order" "$to/lib64/modules/$release/"
echo "$modules" >"$to/etc/modules"

cp init "$to/"
cp agent functions "$to/sbin/"
chmod 0755 "$to/init" "$to/sbin/agent"
"$busybox" depmod -b "$to" "$release"
(cd "$to" && find . | "$busybox" cpio -o -H newc -R 0:0 2>/dev/null) >initrd
rm -rf "$from" "$to" packages.d extra libraries module-files
