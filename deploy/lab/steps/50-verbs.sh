# The verbs fabric over soft-RoCE: both racks with each other, until the network of one is cut. Then in
# rack 0 the conformance suite, also with the smallest device limits, and a pool; in rack 1 peers that die or
# send garbage, registered memory, and the suite with faults; in both, daemons that can't have the fabric.
export RACKPOOL_RDMA_ADDRESS=$LAB_ADDRESS
export RACKPOOL_RDMA_FOLDER=$LAB_SHARED/verbs
export RACKPOOL_RDMA_INTERFACE=eth0
mkdir -p "$RACKPOOL_RDMA_FOLDER"

# An address of rack 1 whose packets rack 0 sends to no host.
lost=192.0.2.1
if on_rack 0; then
    ip route add "$lost" dev eth0
    ip neigh add "$lost" lladdr 02:00:00:00:00:09 dev eth0
else
    ip address add "$lost/32" dev eth0
    # The kernel adds it in the background; entries that are empty can't be read.
    lost_gid() {
        local found
        found=$(grep -ls 'ffff:c000:0201' /sys/class/infiniband/rxe0/ports/1/gids/*) || true
        [ -n "$found" ] && echo "$found"
    }
    gid=$(eventually 60 lost_gid)
    export RACKPOOL_RDMA_LOST_GID=${gid##*/}
fi
barrier verbs

# Each rack loses one in fifty of the packets that it sends: RDMA sends them again.
tc qdisc add dev eth0 root netem loss 2%
barrier lossy
if on_rack 0; then
    tests "$LAB_TEST_VERBS_HOSTS" --exact serve_through_losses
else
    tests "$LAB_TEST_VERBS_HOSTS" --exact visit_through_losses
fi
barrier "no more losses"
lost=$(tc -s qdisc show dev eth0 | sed -n 's/.*dropped \([0-9]*\),.*/\1/p')
[ "${lost:-0}" -ge 1 ] || fail 'the network lost nothing'
report "verbs between racks, while the network lost $lost packets of this rack: all bytes arrived"
tc qdisc del dev eth0 root
barrier reliable

if on_rack 0; then
    tests "$LAB_TEST_VERBS_HOSTS" --exact serve
    tests "$LAB_TEST_VERBS_CONFORMANCE" --test-threads 1 verbs::
    tests "$LAB_TEST_VERBS_LIMITS" --test-threads 1
    tests "$LAB_TEST_FENCING" --test-threads 1 --exact writes_of_a_stopped_rack_do_not_land_over_verbs \
        writes_of_a_stopped_rack_do_not_land_over_verbs_where_a_page_has_moved_away
else
    tests "$LAB_TEST_VERBS_HOSTS" --exact visit
    tests "$LAB_TEST_VERBS_PROCESSES" --test-threads 1
    tests "$LAB_TEST_VERBS_UNAUTHENTICATED" --test-threads 1
    tests "$LAB_TEST_VERBS_REGISTRATION"
    tests "$LAB_TEST_VERBS_COUNTS"
    tests "$LAB_TEST_VERBS_CONFORMANCE" --test-threads 1 verbs_with_faults::
fi

# Without credentials, racks on one host: the loopback address takes the port that there is.
if on_rack 0; then
    dir=/dev/shm/verbs log=$LAB_LOGS/verbs.log
    # Leases longer than an emulator on a busy computer stands still; heartbeats and soft-RoCE need the
    # processors too.
    mkdir -p /tmp/verbs
    rackpool up --dir "$dir" --store /tmp/verbs/metadata.redb --racks 2 --memory 64M --fabric verbs \
        --lease-ms 20000 --nice 0 >"$log" 2>&1 &
    up=$!
    eventually 180 grep -q 'rackpool is up' "$log"
    expect 'verbs: RDMA through rxe0 port 1' rackpool status --dir "$dir"
    expect ', 0 wrong.' rackpool ycsb --dir "$dir" --workload a,f --records 200 --ops 200 \
        --threads 2 --verify --quiet
    kill -TERM "$up"
    wait "$up" || fail "the pool did not stop: $(cat "$log")"
    rm -r "$dir"
fi

# refuses TEXT COMMAND...: a daemon that can't have its fabric ends with TEXT in its output.
refuses() {
    local text=$1 output
    shift
    if output=$(timeout 120 "$@" 2>&1); then fail "$* did not fail"; fi
    printf '%s\n' "$output"
    [[ $output == *"$text"* ]] || fail "'$text' is not in the output of: $*"
}
daemon() { rackpool-daemon --rack 9 --dir /dev/shm/refused --memory 64M --fabric verbs "$@"; }
# The limit binds processes without CAP_IPC_LOCK.
bounded() {
    ulimit -l 64
    setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock "$(command -v rackpool-daemon)" --rack 9 \
        --dir /dev/shm/refused --memory 64M --fabric verbs
}
export -f daemon bounded
refuses 'there is no RDMA device mlx5_0' bash -c 'daemon --rdma-device mlx5_0'
refuses 'raise it (LimitMEMLOCK=infinity' bash -c bounded
# A processor with erms, as the kernel would report it.
sed 's/^flags.*/& erms/' /proc/cpuinfo >/tmp/cpuinfo
mount --bind /tmp/cpuinfo /proc/cpuinfo
refuses 'boot with clearcpuid=erms,fsrm' bash -c daemon
expect 'soft-RoCE would tear 8-byte words' rackpool doctor --quick
umount /proc/cpuinfo
library=$(ldconfig -p | awk '$1 == "libibverbs.so.1" && !found++ { print $NF }')
mv "$library" "$library.away"
refuses 'apt-get install libibverbs1' bash -c daemon
mv "$library.away" "$library"
# The next step needs the device again.
rdma link delete rxe0
refuses 'modprobe rdma_rxe' bash -c daemon
rdma link add rxe0 type rxe netdev eth0
eventually 60 grep ACTIVE /sys/class/infiniband/rxe0/ports/1/state
rm -rf /dev/shm/refused
