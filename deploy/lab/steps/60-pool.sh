# One pool of both racks: the metadata server in rack 0, a daemon and clients in each, all with
# credentials. Rack 0's frames lie on the node without processors, rack 1's on the CXL expander. Every
# value that is read is checked. An object is cast from rack 0 to rack 1. Then rack 1's daemon is killed,
# and its memory outlives it.
make_dax
kind=numa:2
on_rack 0 || kind=dax:/dev/dax0.0

# Leases longer than an emulator on a busy computer stands still.
lease=20000

# If a client fails: the end of the daemon's log.
trap '[ $? -eq 0 ] || tail -n 5 "$LAB_LOGS/$fabric-daemon.log"' EXIT

ready() { grep -q ' serves 32 frames' "$LAB_LOGS/$fabric-daemon.log"; }

start_daemon() {
    : >"$LAB_LOGS/$fabric-daemon.log"
    rackpool-daemon --rack "$LAB_RACK" --dir "$dir" --memory 64M --memory-kind "$kind" \
        --metadata "10.0.0.1:$port" --credentials "$credentials/rack-$LAB_RACK" \
        --lease-ms "$lease" --nice 0 --fabric "$fabric" --fabric-listen "$LAB_ADDRESS:0" >>"$LAB_LOGS/$fabric-daemon.log" 2>&1 &
    daemon=$!
    eventually 180 ready
}

status() { rackpool status --dir "$dir" --metadata "10.0.0.1:$port" --credentials "$credentials/operator"; }

# Whether this rack has measured the thresholds of its requests to the other one.
calibrated() { status | grep "^rack $LAB_RACK: to rack $LAB_PEER: pure RPC up to "; }

# ycsb TABLE OPTION...: 200 records, by clients of this rack.
ycsb() {
    local table=$1
    shift
    expect ', 0 wrong.' timeout 200 rackpool ycsb --dir "$dir" --racks "$LAB_RACK" \
        --table "$table" --records 200 --threads 2 --verify --quiet "$@"
}

# Casts an object of 3 MB from rack 0 to an agent in rack 1, and compares its bytes there.
cast() {
    local here=(--dir "$dir" --rack "$LAB_RACK" --metadata "10.0.0.1:$port" --credentials "$credentials/operator")
    if on_rack 1; then
        rackpool agent "${here[@]}" >"$LAB_LOGS/$fabric-agent.log" 2>&1 &
        agent=$!
    else
        head -c 3000000 /dev/urandom >"$LAB_SHARED/$fabric-object"
        rackpool objects put object "$LAB_SHARED/$fabric-object" "${here[@]}"
        eventually 180 rackpool cast object --to 1 --grace 120 "${here[@]}"
    fi
    barrier "$fabric: the object has come"
    on_rack 1 || return 0
    expect 'in rack 1, ready' rackpool objects explain object "${here[@]}"
    rackpool objects get object "${here[@]}" | cmp - "$LAB_SHARED/$fabric-object"
    kill -TERM "$agent"
    wait "$agent" || fail "the agent did not end well"
}

# pool FABRIC PORT: the metadata server's port.
pool() {
    fabric=$1 port=$2 dir=/dev/shm/$1 credentials=/tmp/$1-credentials
    mkdir -p "$dir" "$credentials" "/tmp/$fabric"
    if on_rack 0; then
        # The folder that the guests share may belong to another user of the host.
        rackpool credentials init "$credentials" --racks 2
        cp -r --preserve=mode "$credentials" "$LAB_SHARED/"
        rackpool-metaserver --listen "$LAB_ADDRESS:$port" --store "/tmp/$fabric/metadata.redb" \
            --lease-ms "$lease" \
            --credentials "$credentials/metadata" >"$LAB_LOGS/$fabric-metadata.log" 2>&1 &
        metadata=$!
        eventually 180 status
    fi
    barrier "$fabric: metadata server"
    on_rack 0 || cp -r --preserve=mode "$LAB_SHARED/$fabric-credentials/"{rack-1,operator} "$credentials"
    start_daemon
    # The buffers of requests lie on the daemon's node.
    if on_rack 0; then expect prefer:0 grep rackpool-buffers "/proc/$daemon/numa_maps"; fi
    barrier "$fabric: daemons"

    echo '==== each rack alone'
    ycsb "table-$LAB_RACK" --workload a --ops 200
    barrier "$fabric: loaded"
    echo '==== each rack with what the other one stores'
    ycsb "table-$LAB_PEER" --no-load --workload a,b,c,f --ops 200
    barrier "$fabric: crossed"
    echo '==== both racks with the same'
    ycsb table-0 --no-load --workload a,d,f --ops 200
    barrier "$fabric: shared"

    echo '==== an object is cast to the other rack'
    cast
    barrier "$fabric: cast"

    echo "==== rack 1's daemon dies"
    if on_rack 1; then
        kill -KILL "$daemon"
        wait "$daemon" || true
        start_daemon
    fi
    barrier "$fabric: killed"
    on_rack 1 || ycsb table-1 --no-load --workload c,a --ops 100
    barrier "$fabric: outlived"

    if on_rack 0; then
        status
        remote=$(status | awk '$1 == 0 && $2 == "up" { print $NF }')
        # A slow run has few: hot pages have come here before.
        [ "${remote:-0}" -ge 20 ] || fail "rack 0 says it did ${remote:-no} remote operations"
    fi
    if [ "$fabric" = verbs ] && on_rack 0; then
        # At the daemon that was not killed: measured thresholds end with a connection.
        eventually 180 calibrated
        counted=$(status | grep "^rack $LAB_RACK: work requests of the device")
        [[ $counted =~ ([0-9.]+)\ a\ doorbell,\ ([0-9.]+)\ a\ completion ]] || fail "no figures: $counted"
        report "verbs in the pool, ${counted#rack *: }"
    fi
    barrier "$fabric: counted"
    kill -TERM "$daemon"
    wait "$daemon" || fail "the daemon did not end well"
    barrier "$fabric: daemons are gone"
    if on_rack 0; then
        kill -TERM "$metadata"
        wait "$metadata" || fail "the metadata server did not end well"
    fi
    rm -r "$dir"
}

pool tcp 7400
pool verbs 7401
