# The NUMA study between the two nodes with processors, each page's node asked of the kernel before and
# after each measurement; and with memory on the node without processors. How long anything takes says
# nothing here.

# study FABRIC OPTION...: reads and writes, each measured with memory on both nodes.
study() {
    local csv=/tmp/study.csv
    rackpool numa study --pairs 2 --operations 20 --queue-pairs 2 --csv "$csv" --fabric "$@"
    local lines
    lines=$(wc -l <"$csv")
    [ "$lines" -eq 3 ] || fail "$((lines - 1)) rows instead of 2: reads and writes"
    rm "$csv"
}

if on_rack 0; then
    # The card's node is declared: no option names the nodes.
    expect 'local is NUMA node 0, remote is node 1' \
        rackpool numa study --pairs 2 --operations 20 --operation read --queue-pairs 1
    study emulated --workers 1 --load-threads 1 --load-node remote --load-buffer 1M
    study emulated --card-node 0 --other-node 2
    if rackpool numa study --card-node 0 --other-node 7 --pairs 2 2>"$LAB_LOGS/refused"; then
        fail 'node 7 is there'
    fi
    grep -q '7' "$LAB_LOGS/refused" || fail "the refusal does not name node 7"
else
    study tcp
    study verbs --rdma-device rxe0
    rackpool numa study --workload kv --pairs 2 --operations 20 --queue-pairs 2
fi
