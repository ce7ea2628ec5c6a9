# The conformance suite over the fabrics that need no device (`cargo test` runs it over their variants) and over
# verbs throttled to a slow network; and pools within one guest whose frames lie on a node without
# processors, in huge pages, and on a CXL expander. Every value that is read is checked.

# pool MEMORY FRAMES OPTION...: MEMORY is the kind that the status prints, FRAMES where the frames are.
pool() {
    local memory=$1 frames=$2 dir=/dev/shm/pool log=$LAB_LOGS/pool.log
    shift 2
    # Leases longer than an emulator on a busy computer stands still; heartbeats need the processors too.
    mkdir -p /tmp/pool
    rackpool up --dir "$dir" --store /tmp/pool/metadata.redb --lease-ms 20000 --nice 0 "$@" >"$log" 2>&1 &
    local up=$!
    eventually 180 grep -q 'rackpool is up' "$log"
    expect "memory of kind $memory" rackpool status --dir "$dir"
    expect ", frames $frames" rackpool status --dir "$dir"
    expect ', 0 wrong.' rackpool ycsb --dir "$dir" --workload a,b,c,d,f --records 300 --ops 400 \
        --threads 2 --verify --quiet
    kill -TERM "$up"
    wait "$up" || fail "the pool did not stop: $(cat "$log")"
    rm -r "$dir" /tmp/pool
}

if on_rack 0; then
    tests "$LAB_TEST_FABRICS" emulated::
    # Here and not with the rest of verbs, because the other rack has more to do in this step.
    RACKPOOL_RDMA_ADDRESS=$LAB_ADDRESS tests "$LAB_TEST_VERBS_CONFORMANCE" --test-threads 1 \
        verbs_throttled::
    mount -o remount,huge=advise /dev/shm
    pool 'numa:1, pages of 2 MiB' 'on NUMA node 1' --racks 2 --memory 64M --memory-kind numa:1
else
    tests "$LAB_TEST_FABRICS" tcp::
    pool 'numa:1, pages of 4 KiB' 'on NUMA node 1' --racks 2 --memory 64M --memory-kind numa:1 --fabric tcp
    pool 'tmpfs' 'on NUMA node 1 (as asked)' --racks 2 --memory 64M --frames-node 1
    pool dax:/dev/dax0.0 'where the device is' --racks 1 --memory 64M --memory-kind dax:/dev/dax0.0
fi
