#!/bin/sh
# Compiles the modules of ZFS into ./extra, from the Debian packages in ./sources.d: its source text, and the headers of the
# kernel. Nothing is installed.
set -eu

from=$PWD/sources
mkdir "$from" extra
for package in sources.d/*.deb; do dpkg-deb -x "$package" "$from"; done
headers=$(echo "$from"/usr/src/linux-headers-*-cloud-amd64)
common=$(echo "$from"/usr/src/linux-headers-*-common)
# It includes the common one by its path.
sed -i "s|/usr/src/|$from/usr/src/|" "$headers/Makefile"
extra=$PWD/extra
cd "$from"/usr/src/zfs-*
# What they print is only of use if they fail.
quietly() { "$@" >log 2>&1 || { tail -n 20 log >&2; exit 1; }; }
quietly ./configure --with-config=kernel --with-linux="$common" --with-linux-obj="$headers"
# Without what is only for a debugger, which takes a quarter of the time.
quietly make -j"$(nproc)" -C module CONFIG_DEBUG_INFO=
find module -name '*.ko' -exec cp {} "$extra" \;
cd "$extra/.."
strip --strip-debug extra/*.ko
rm -rf "$from" sources.d
