#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# simulate.sh [PROGRAM]: hit rates of the prefix tree against plain LRU and Belady's optimum on the
# conversation trace of ../shared (docs/cache-policy.md), and the cost of the replay: microseconds
# per step, and seconds and peak MiB of the whole process (with reading the trace, LRU and Belady).
# Exits with 1 if the tree has a lower hit rate than LRU, or the process takes 20 s or 1 GiB.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-build/kvasir}
trace=../shared/traces/mooncake-fast25/conversation_trace.jsonl
if [ ! -f "$trace" ]; then
    echo "simulate: skipped, no trace: $trace"
    exit
fi

failed=0
table() { # TITLE FLAG...
    local title=$1 budget
    shift
    echo "$title"
    echo "  budget     tree %      LRU %   Belady %   GiB   us/step   wall s   MiB"
    for budget in 10 20 40 60; do
        python3 -c '
import json, resource, subprocess, sys, time
start = time.monotonic()
run = subprocess.run(sys.argv[2:], stdout=subprocess.PIPE)
seconds = time.monotonic() - start
mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10
if run.returncode != 0:
    sys.exit(1)
o = json.loads(run.stdout)
tree, lru, best = (100 * o[k] for k in ("hit_rate", "lru_hit_rate", "belady_hit_rate"))
assert o["peak_bytes"] <= o["budget_bytes"]
missed = [text for bad, text in (
    (tree < lru, "BELOW LRU"), (seconds >= 20, "20 s OR MORE"), (mib >= 1024, "1 GiB OR MORE"),
) if bad]
print("  %5s %% %10.3f %10.3f %10.3f %5.0f %9.2f %8.2f %5.0f   %s" % (
    sys.argv[1], tree, lru, best, o["budget_bytes"] / 2**30,
    1e6 * o["engine_seconds"] / o["steps"], seconds, mib, ", ".join(missed)))
sys.exit(len(missed) > 0)' "$budget" "$program" simulate --trace "$trace" --budget "$budget%" \
            --json -q "$@" || failed=1
    done
}

table "hit rate of prompt tokens, requests one after the other (as LRU and Belady serve them):" \
    --speed 0 --max-num-seqs 1 --prefill-chunk 4096
table "arrivals as recorded, 32 at once:"
exit "$failed"
