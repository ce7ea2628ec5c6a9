# Requests between racks over verbs: in rack 0 plain, in rack 1 with faults.
export RACKPOOL_RDMA_ADDRESS=$LAB_ADDRESS
if on_rack 0; then
    tests "$LAB_TEST_RRPC_VERBS" --test-threads 1 verbs::
else
    tests "$LAB_TEST_RRPC_VERBS" --test-threads 1 verbs_with_faults::
fi
