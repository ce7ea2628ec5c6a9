# The conformance suite over the fabrics that need no device (`cargo test` runs it over their variants) and over
# verbs throttled to a slow network; and pools within one guest whose frames lie on a node without
# processors, in huge pages, and on a CXL expander. Every value that is read is checked.

# What `rackpool doctor` says of the frames, if anything.
away=
# pool MEMORY FRAMES OPTION...: MEMORY is the kind that the status prints, FRAMES where the frames are.
pool() {
    local memory=$1 frames=$2 dir=/dev/shm/pool log=$LAB_LOGS/pool.log
    shift 2
    # Leases longer than an emulator on a busy computer stands still; heartbeats need the processors too.
    # Both daemons on the processor of the card's node would leave the other one idle.
    mkdir -p /tmp/pool
    rackpool up --dir "$dir" --store /tmp/pool/metadata.redb --lease-ms 20000 --nice 0 \
        --numa-node none "$@" >"$log" 2>&1 &
    local up=$!
    eventually 180 grep -q 'rackpool is up' "$log"
    expect "memory of kind $memory" rackpool status --dir "$dir"
    expect ", frames $frames" rackpool status --dir "$dir"
    # The verdict follows the load of the nodes, too.
    [ -z "$away" ] || eventually 180 expect "$away" rackpool doctor --quick --dir "$dir"
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
    pool 'numa:2, pages of 2 MiB' 'on NUMA node 2' --racks 2 --memory 64M --memory-kind numa:2
else
    tests "$LAB_TEST_FABRICS" tcp::
    pool 'numa:2, pages of 4 KiB' 'on NUMA node 2' --racks 2 --memory 64M --memory-kind numa:2 --fabric tcp
    pool 'tmpfs' 'on NUMA node 2 (as asked)' --racks 2 --memory 64M --frames-node 2
    away='its frames are on NUMA node 1, the RDMA card is on node 0'
    pool 'tmpfs' 'on NUMA node 1 (as asked)' --racks 2 --memory 64M --frames-node 1
    away=
    pool dax:/dev/dax0.0 'where the device is' --racks 1 --memory 64M --memory-kind dax:/dev/dax0.0
fi
