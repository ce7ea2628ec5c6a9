# The NUMA study between the two nodes with processors, each page's node asked of the kernel before and
# after each measurement; and with memory on the node without processors. How long anything takes says
# nothing here.

# study FABRIC OPTION...: two experiments, each measured on both nodes.
study() {
    local out
    out=$(rackpool numa study --pairs 2 --seconds 1 --operation read,write --csv --fabric "$@")
    echo "$out"
    local lines
    lines=$(awk -F, 'NR > 1 && $1 == "host" && $13 > 0 && $19 > 0' <<<"$out" | wc -l)
    [ "$lines" -eq 2 ] || fail "$lines of 2 experiments were measured on both nodes"
}

if on_rack 0; then
    # The card's node is declared: no option names the nodes.
    expect 'registered memory on node 0 (the card'\''s) and on node 1' \
        rackpool numa study --pairs 2 --seconds 0.5 --operation read
    study emulated --workers 1 --load-threads 1
    study emulated --node 0 --other-node 2
    # A node that is not there, and memory where it may not be.
    if rackpool numa study --node 0 --other-node 7 --pairs 2 2>"$LAB_LOGS/refused"; then
        fail 'node 7 is there'
    fi
    grep -q 'NUMA node 7' "$LAB_LOGS/refused" || fail "the refusal does not name node 7"
else
    study tcp
    study verbs --fabric-listen "$LAB_ADDRESS" --queue-pairs 4
fi
