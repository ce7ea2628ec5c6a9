#!/usr/bin/env bash
# Installs the missing system packages that the build and the plots of rackpool need, on Debian and
# Ubuntu. Prints nothing and uses no network on a machine that has them.
#
# `prepare.sh wheel` adds what builds the Python wheel. `prepare.sh test` adds that, the packages of the lab
# (deploy/lab/README.md), which runs the distribution's own kernel, and those of the tests of mounts and services.
set -euo pipefail

stop() {
    printf 'prepare: %s\n' "$1" >&2
    exit 1
}

packages=()
has() { command -v "$1" >/dev/null 2>&1; }
{ has cc && has ld && has make && [ -e /usr/include/stdio.h ]; } || packages+=(build-essential)
has pkg-config || packages+=(pkg-config)
# The plots name this font by its path.
[ -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] || packages+=(fonts-dejavu-core)

# needs FILE PACKAGE: FILE is a program or a path that the package provides.
needs() { { has "$1" || [ -e "$1" ]; } || packages+=("$2"); }
needs_lists=
needs_libclang=
if [ "${1:-}" = test ] || [ "${1:-}" = wheel ]; then
    needs python3 python3
    # With it `python3 -m venv` works. The wheel needs no headers of Python: it uses the stable ABI.
    python3 -c 'import ensurepip' >/dev/null 2>&1 || packages+=(python3-venv)
fi
if [ "${1:-}" = test ]; then
    PATH="$PATH:/usr/sbin:/sbin"
    needs qemu-system-x86_64 qemu-system-x86
    # The static busybox: the initramfs has no libraries.
    dpkg-query --status busybox-static >/dev/null 2>&1 || packages+=(busybox-static)
    needs cpio cpio
    needs modprobe kmod
    # Ubuntu compresses its modules with zstd.
    if grep -qsE '^ID(_LIKE)?=.*ubuntu' /etc/os-release; then needs zstd zstd; fi
    needs ip iproute2
    needs numactl numactl
    needs /etc/rdma rdma-core
    needs /etc/libibverbs.d/rxe.driver ibverbs-providers
    needs ibv_rc_pingpong ibverbs-utils
    needs rping rdmacm-utils
    # Tests compare the layouts of crates/fabric-verbs with this header.
    needs /usr/include/infiniband/verbs.h libibverbs-dev
    needs ib_read_bw perftest
    # tests/abi compares them with two packages, which are built with these.
    needs /usr/include/rdma/rdma_cma.h librdmacm-dev
    needs /usr/include/libnl3/netlink/netlink.h libnl-3-dev
    needs /usr/include/libnl3/netlink/route/link.h libnl-route-3-dev
    needs cmake cmake
    # rdma-sys works with libclang 14 and 15 only. Without one, the step `abi` of `cargo x ci` is
    # skipped.
    needs_libclang=yes
    for version in 15 14; do
        folder=/usr/lib/llvm-$version/lib
        if compgen -G "$folder/libclang[.-][1s]*" >/dev/null &&
            compgen -G "$folder/clang/*/include/stddef.h" >/dev/null; then
            needs_libclang=
        fi
    done
    # Mounts of users other than root, and the benchmark of mounts.
    needs fusermount3 fuse3
    needs fio fio
    needs cxl ndctl
    needs daxctl daxctl
    # The server that rackpool-kv is compared with, and clients.
    needs redis-server redis-server
    needs redis-cli redis-tools
    # A program whose locks a mount serves; python3, above, is another.
    needs sqlite3 sqlite3
    # Checks the metrics.
    needs promtool prometheus
    # The lab downloads the kernel that the package lists name; old lists name packages that are gone.
    compgen -G "${XDG_CACHE_HOME:-$HOME/.cache}/rackpool/lab/*.deb" >/dev/null || needs_lists=yes
fi

# libclang_version: prints the newest version in the package lists that rdma-sys can use, or nothing.
libclang_version() {
    local version
    for version in 15 14; do
        if apt-cache show "libclang1-$version" >/dev/null 2>&1; then
            printf '%s\n' "$version"
            return
        fi
    done
}

has_libclang=
if [ -n "$needs_libclang" ]; then has_libclang=$(libclang_version); fi
if [ "${#packages[@]}" -gt 0 ] || [ -n "$needs_lists$has_libclang" ]; then
    missing="${packages[*]:-fresh lists of packages}"
    has apt-get || stop "missing: $missing (names of Debian packages). There is no apt-get \
here: install what your system calls them, then run this again."
    as_root=(env DEBIAN_FRONTEND=noninteractive)
    if [ "$(id -u)" -ne 0 ]; then
        has sudo || stop "missing: $missing. Without sudo only root can install them: \
apt-get update && apt-get install ${packages[*]}"
        as_root=(sudo "${as_root[@]}")
    fi
    "${as_root[@]}" apt-get update -qq
fi
if [ -n "$needs_libclang" ]; then
    # Lists that were empty before are not now.
    has_libclang=$(libclang_version)
    if [ -n "$has_libclang" ]; then
        packages+=("libclang1-$has_libclang" "libclang-common-$has_libclang-dev")
    else
        printf 'prepare: the package lists have no libclang 14 or 15: `cargo x ci` will skip its step abi\n'
    fi
fi
if [ "${#packages[@]}" -gt 0 ]; then
    printf 'prepare: installing %s\n' "${packages[*]}"
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}"
fi

PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
has cargo || stop "cargo is not installed. Install Rust from https://rustup.rs, then run this again."

# rust-toolchain.toml names the toolchain and its components: the first call of cargo under rustup
# fetches them.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
found=$(rustc --version | cut -d ' ' -f 2)
older=$(printf '%s\n' "$wanted" "$found" | sort -V | sed -n 1p)
[ "$older" = "$wanted" ] || stop "rustc $found is too old, $wanted is needed: rustup update stable"
