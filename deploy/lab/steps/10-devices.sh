# The devices exist and RDMA works between the racks, before rackpool is tested.
nodes=$(numactl --hardware)
echo "$nodes"
grep -qx 'node 0 cpus: 0' <<<"$nodes" || fail 'node 0 does not have processor 0'
grep -qx 'node 1 cpus: 1' <<<"$nodes" || fail 'node 1 does not have processor 1'
grep -qx 'node 2 cpus:' <<<"$nodes" || fail 'node 2 is not without processors'
if grep -Ew 'erms|fsrm' /proc/cpuinfo; then fail 'soft-RoCE would copy by bytes'; fi
eventually 60 expect mem0 cxl list --memdevs
eventually 60 expect 'state ACTIVE' rdma link show

# pair NAME LISTENER CONNECTOR: the listener in rack 0, the connector in rack 1 once that listens.
pair() {
    barrier "$1"
    if on_rack 0; then
        timeout 180 $2
    else
        eventually 180 timeout 120 $3
    fi
}
pingpong='ibv_rc_pingpong -d rxe0 -g 1 -n 100'
pair pingpong "$pingpong" "$pingpong $LAB_PEER_ADDRESS"
pair rping "rping -s -a $LAB_ADDRESS -C 20 -V" "rping -c -a $LAB_PEER_ADDRESS -C 20 -V"
