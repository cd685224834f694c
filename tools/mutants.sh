#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Plants one-line bugs in a copy of the tree and runs the property test on each: every one must be
# caught. Part of `make soak`. A mutant is FILE|BEFORE|AFTER|what it breaks; BEFORE must occur in FILE.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=${1:-150}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mutants=(
    'cache/seq.c|if (!open_is_shared(s, group))|if (open_entry(s, group) >= -1)|a fork writes into its twin'\''s page'
    'cache/seq.c|(p + 1 - g->span) / TILE_TOKENS|(p + 64 - g->span) / TILE_TOKENS|pages dropped too early'
    'cache/seq.c|page_ref(s->cache->pool, to->pages[i].addr);|;|a fork forgets its references'
    'cache/seq.c|if (pages <= kept)|if (false)|trim among the kept pages leaves the table'\''s base'
    'backend/cpu/attention.c|clamp_to_run(p + 1, run_start, n), n|clamp_to_run(p + 2, run_start, n), n|a query sees the token behind it'
    'backend/cpu/attention.c|clamp_to_run(window_start(v, p), run_start, n)|clamp_to_run(window_start(v, p / 64 * 64), run_start, n)|window masked by page, not by position'
    'backend/cpu/attention.c|mask_row(b->view, b->pos + r / j->gqa, run_start|mask_row(b->view, b->pos + b->tokens - 1, run_start|all rows of a block see what its last one sees'
    'backend/cpu/attention.c|.f32 = s->queries.f32 + r * dim|.f32 = s->queries.f32|rows of a block share a query'
    'backend/cpu/product.c|b->act.rows = rows;|b->act.rows = rows > 1 ? rows - 1 : 1;|the last row of a step is not multiplied'
    'backend/cpu/product.c|thread_pool_run(b->pool, rows, pack_item, b)|thread_pool_run(b->pool, 1, pack_item, b)|only the first row is rounded anew'
    'engine/seq_api.c|c->pos[i] = first + i;|c->pos[i] = first;|all rows of a step rotate like the first'
)
cp -r CMakeLists.txt CMakePresets.json kvasir.pc.in include src tests docs bench "$dir"/
build() {
    cmake --build "$dir/build" --target sim_property >"$dir/log" 2>&1
}
cmake -S "$dir" -B "$dir/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=ON \
    -DSHARED_DIR="$PWD/../shared" -DMODELS_DIR="$PWD/models" >/dev/null
build
"$dir/build/tests/sim_property" --programs=20 >/dev/null || { echo "mutants: the tree itself fails" >&2; exit 1; }
caught=0 missed=0
for mutant in "${mutants[@]}"; do
    IFS='|' read -r file before after what <<<"$mutant"
    python3 - "$dir/src/$file" "$before" "$after" <<'PY' || { echo "mutants: '$before' is not in $file" >&2; exit 1; }
import sys
path, before, after = sys.argv[1:]
text = open(path).read()
if before not in text:
    sys.exit(1)
open(path, "w").write(text.replace(before, after, 1))
PY
    if ! build; then
        echo "mutants: does not compile: $what" >&2
        tail -5 "$dir/log" >&2
        exit 1
    fi
    if timeout 300 "$dir/build/tests/sim_property" --programs="$programs" >"$dir/log" 2>&1; then
        echo "MISSED  $file: $what"
        missed=$((missed + 1))
    else
        echo "caught  $file: $what"
        caught=$((caught + 1))
    fi
    cp "src/$file" "$dir/src/$file"
done
echo "$caught mutants caught, $missed missed"
[ "$missed" = 0 ]
