# A peer written with the package ibverbs, in rack 1, and a rack with the verbs fabric, in rack 0: they agree
# on the handshake, on every byte of each other's regions, and on messages.
if [ -z "$LAB_TEST_ABI_PEER" ]; then
    report 'a peer written with ibverbs: SKIPPED, it can not be built on this computer'
else
    export RACKPOOL_RDMA_ADDRESS=$LAB_ADDRESS
    export RACKPOOL_RDMA_FOLDER=$LAB_SHARED/peer
    mkdir -p "$RACKPOOL_RDMA_FOLDER"
    if on_rack 0; then
        tests "$LAB_TEST_ABI_PEER" --exact serve
        report 'a rack and a peer written with ibverbs: all bytes agree'
    else
        tests "$LAB_TEST_ABI_PEER" --exact visit
    fi
fi
