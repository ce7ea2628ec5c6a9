#!/usr/bin/env bash
# Installs the system packages that building rackpool and drawing its plots need, if they are
# missing. Silent, and without network, on a machine that has them. Debian and Ubuntu.
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

if [ "${#packages[@]}" -gt 0 ]; then
    has apt-get || stop "missing: ${packages[*]} (names of Debian packages). There is no apt-get \
here: install what your system calls them, then run this again."
    as_root=(env DEBIAN_FRONTEND=noninteractive)
    if [ "$(id -u)" -ne 0 ]; then
        has sudo || stop "missing: ${packages[*]}. Without sudo only root can install them: \
apt-get install ${packages[*]}"
        as_root=(sudo "${as_root[@]}")
    fi
    printf 'prepare: installing %s\n' "${packages[*]}"
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}"
fi

PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
has cargo || stop "cargo is not installed. Install Rust from https://rustup.rs, then run this again."

# rust-toolchain.toml names the toolchain and its components: the first call of cargo under rustup
# fetches what is missing.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
found=$(rustc --version | cut -d ' ' -f 2)
older=$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)
[ "$older" = "$wanted" ] || stop "rustc $found is too old, $wanted is needed: rustup update stable"
