# The conformance suite for the kinds of memory that an ordinary computer lacks: a node without
# processors, and a CXL expander as a dax device.
if on_rack 0; then
    make_dax
    # A rack of 1 GiB has no page of 1 GiB to spare.
    RACKPOOL_TEST_DAX=/dev/dax0.0 tests "$LAB_TEST_MEMORY_KINDS" --nocapture --test-threads 1 \
        --skip huge_pages_of_1_gib_conform | tee "$LAB_LOGS/memory-kinds"
    for kind in tmpfs memfd huge:2M numa:2 dax:/dev/dax0.0; do
        grep -q "conformance of $kind\$" "$LAB_LOGS/memory-kinds" || fail "$kind was not tried"
    done
fi
