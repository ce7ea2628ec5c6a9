# Runs the steps named by the arguments, one after the other, in both racks at the same time; each
# writes a log of its own. Stops at the first step that fails in either rack.
for step in "$@"; do
    barrier "before $step" 1300
    status=0
    timeout 1200 bash -euo pipefail -c '. "$0"; . "$1"' "$LAB_WORKSPACE/deploy/lab/lib.sh" \
        "$LAB_WORKSPACE/deploy/lab/steps/$step.sh" >"$LAB_LOGS/$step.log" 2>&1 || status=$?
    if [ "$status" -ne 0 ]; then
        echo "failed $step with $status; its log ends:"
        tail -n 25 "$LAB_LOGS/$step.log"
        exit "$status"
    fi
    echo "passed $step"
done
barrier 'the end' 1300
