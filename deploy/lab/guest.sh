# Makes a guest a rack and runs the script that the host left for it. Writes the script's output and
# exit status where the host reads them; then the guest waits until the host ends it.
. /run/lab/environment
export LAB_SHARED=/run/lab LAB_LOGS=/run/lab/rack$LAB_RACK LAB_PEER=$((1 - LAB_RACK))
export LAB_ADDRESS=10.0.0.$((LAB_RACK + 1)) LAB_PEER_ADDRESS=10.0.0.$((2 - LAB_RACK))
export PATH="$LAB_TARGET/debug:$PATH"
exec >"$LAB_LOGS/output" 2>&1 </dev/null

become_a_rack() {
    ulimit -l unlimited
    ulimit -c 0
    hostname "rack$LAB_RACK"
    ip link set lo up
    ip address add "$LAB_ADDRESS/24" dev eth0
    # The largest RDMA MTU, 4096 bytes, and room for its headers.
    ip link set eth0 mtu 4200 up
    rdma link add rxe0 type rxe netdev eth0
}

set -e
become_a_rack
cd "$LAB_WORKSPACE"
set +e
bash -euo pipefail -c '. "$LAB_WORKSPACE/deploy/lab/lib.sh"; . "$0"' \
    "$LAB_SHARED/script$LAB_RACK" "${LAB_ARGUMENTS[@]}"
status=$?
[ "$status" -eq 0 ] || touch "$LAB_SHARED/failed.$LAB_RACK"
# Moved, so that the host never reads half of it.
echo "$status" >"$LAB_LOGS/status.new"
mv "$LAB_LOGS/status.new" "$LAB_LOGS/status"
sleep infinity
