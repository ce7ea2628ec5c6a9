# Functions for the scripts that run in the racks; see README.md. They run under `set -euo pipefail`.

fail() {
    echo "lab: $*" >&2
    exit 1
}

on_rack() { [ "$LAB_RACK" -eq "$1" ]; }

# barrier NAME [seconds]: waits until the other rack reaches the barrier of this name. Fails after
# the seconds (900 by default: longer than any command between two barriers). Exits with 3, which the
# host attributes to the other rack, when that rack's script has failed.
barrier() {
    local name=$1 seconds=${2:-900}
    local other=$LAB_SHARED/barrier.$name.$LAB_PEER
    touch "$LAB_SHARED/barrier.$name.$LAB_RACK"
    local end=$((SECONDS + seconds))
    until [ -e "$other" ]; do
        if [ -e "$LAB_SHARED/failed.$LAB_PEER" ]; then
            echo "lab: rack $LAB_PEER failed before '$name'" >&2
            exit 3
        fi
        [ "$SECONDS" -lt "$end" ] || fail "rack $LAB_PEER did not come to '$name' in $seconds s"
        sleep 0.1
    done
}

# eventually SECONDS COMMAND...: repeats the command until it succeeds; shows the output of the last
# attempt.
eventually() {
    local seconds=$1 output
    shift
    local end=$((SECONDS + seconds))
    until output=$("$@" 2>&1); do
        [ "$SECONDS" -lt "$end" ] || fail "not within $seconds s: $*: $output"
        sleep 0.1
    done
    [ -z "$output" ] || printf '%s\n' "$output"
}

# expect TEXT COMMAND...: runs the command, shows its output, and fails unless TEXT is in it.
expect() {
    local text=$1 output
    shift
    output=$("$@" 2>&1) || fail "$* failed: $output"
    printf '%s\n' "$output"
    [[ $output == *"$text"* ]] || fail "'$text' is not in the output of: $*"
}

# tests PROGRAM ARGUMENT...: runs a test program, shows its output, and fails unless at least one test
# ran and none printed that it was skipped. Without that a filter that matches no test, or an empty
# variable, would pass.
tests() {
    local output
    output=$(mktemp)
    "$@" 2>&1 | tee "$output" || fail "$* failed"
    grep -q '^test result: ok\. [1-9][0-9]* passed' "$output" || fail "no test was run by: $*"
    if grep SKIPPED "$output"; then fail "a test was skipped by: $*"; fi
    rm "$output"
}

# report TEXT: a line for the report at the end of the lab.
report() { echo "$*" >>"$LAB_LOGS/report"; }

# make_dax: turns the rack's CXL expander into /dev/dax0.0, as an operator would, unless it exists.
make_dax() {
    [ ! -e /dev/dax0.0 ] || return 0
    cxl create-region -m -d decoder0.0 -t pmem mem0
    # The kernel makes the region known in the background.
    eventually 60 make_namespace
}

make_namespace() { [ -e /dev/dax0.0 ] || ndctl create-namespace -m devdax; }
