# `rackpool doctor` names the RDMA port, the node without processors and the CXL device, and tells how
# to make memory for a rack of the last one; then the verdict changes.
if on_rack 0; then
    rackpool credentials init /tmp/doctor
    rackpool doctor --credentials /tmp/doctor/rack-0 | tee "$LAB_LOGS/doctor"
    verdict=$(sed -n '/^verdict/,$p' "$LAB_LOGS/doctor")
    for text in '--fabric verbs: racks on any host by RDMA, through port 1 of rxe0' \
        '--memory-kind numa:2: NUMA node 2 is' \
        "placement          node 0: the RDMA card's" 'frames             node ' 'the CXL memory mem0 (256 MiB) is not in use'; do
        [[ $verdict == *"$text"* ]] || fail "the verdict does not say '$text'"
    done
else
    expect 'cxl create-region' rackpool doctor --quick
    make_dax
    expect '--memory-kind dax:/dev/dax0.0: CXL memory of 250 MiB' rackpool doctor --quick
    if rackpool doctor --quick | grep 'not in use'; then
        fail 'memory that is a dax device is in use'
    fi
fi
