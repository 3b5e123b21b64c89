#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs a build into an empty folder and uses it there as a stranger would: programs start,
# libcaid is found by pkg-config and by find_package, and a program of each kind shares an array
# with the installed daemon on the installed software driver.
#
# usage: check_install.sh BUILD PREFIX CC     PREFIX is the build's CMAKE_INSTALL_PREFIX
set -eu

build=$1 prefix=$2 cc=$3
here=$(cd "$(dirname "$0")" && pwd)
stage=$(realpath "$(mktemp -d)")
daemon=

cleanup() {
    [ -z "$daemon" ] || kill "$daemon" || true
    rm -rf "$stage"
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

fail() {
    printf 'check_install: %s\n' "$*" >&2
    exit 1
}

DESTDIR=$stage/root cmake --install "$build" >"$stage/log"
root=$stage/root$prefix

for file in bin/caid bin/caid-keeper bin/caidctl include/caid/caid.h lib/systemd/system/caid.service \
    lib/systemd/system/caid.socket lib/systemd/system/caid-keeper.service \
    lib/systemd/system/caid-keeper.socket lib/systemd/system/caid-exporter.service; do
    [ -f "$root/$file" ] || fail "$file is not installed"
done
if [ -d "$build/man" ]; then
    for page in man8/caid.8 man8/caid-keeper.8 man8/caid-exporter.8 man1/caidctl.1 man5/caid.conf.5; do
        [ -f "$root/share/man/$page" ] || fail "$page is not installed"
    done
fi
! find "$stage/root" -name '*criterion*' -o -name 'test_*' -o -name '*.a' | grep . || fail "installed too much"

lib=$(dirname "$(find "$root" -name libcaid.so)")
for file in "$root"/bin/* "$lib"/*.so "$lib"/caid/*.so; do
    ! readelf -d "$file" | grep -E 'R(UN)?PATH.*\[/' || fail "$file looks for libraries in the build"
done

# The installed header and library, by pkg-config and by CMake.
flags=$(PKG_CONFIG_LIBDIR=$lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$stage/root pkg-config --cflags --libs libcaid)
# shellcheck disable=SC2086 # flags is a list of words
"$cc" -std=c11 -Wall -Werror "$here/consumer.c" $flags -o "$stage/by-pkg-config"
cmake -S "$here" -B "$stage/cmake" -G Ninja -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$root" >>"$stage/log"
cmake --build "$stage/cmake" >>"$stage/log"

CAID_SOCKET=$stage/caid.sock
LD_LIBRARY_PATH=$lib
export CAID_SOCKET LD_LIBRARY_PATH
"$root/bin/caid" --foreground --driver=soft --socket="$CAID_SOCKET" 2>"$stage/caid.log" &
daemon=$!
until "$root/bin/caidctl" ping >/dev/null 2>&1; do
    kill -0 "$daemon" 2>/dev/null || fail "caid has ended: $(cat "$stage/caid.log")"
    sleep 0.1
done
"$root/bin/caidctl" status | grep -F "$lib/caid/libcaid-softcuda.so" >/dev/null ||
    fail "the installed software driver is not the one in use: $("$root/bin/caidctl" status)"
"$stage/by-pkg-config"
"$root/bin/caidctl" unlink installed
"$stage/cmake/consumer"
"$root/bin/caidctl" list | grep installed >/dev/null || fail "caidctl does not list the array"
kill "$daemon"
wait "$daemon" || fail "caid ended badly on SIGTERM: $(cat "$stage/caid.log")"
daemon=
