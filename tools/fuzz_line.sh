#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by fuzz.sh and device-fuzz.sh.

# What a libFuzzer log without a finding says, for bench/results. The last new edge: the run that
# reached an edge which none had reached before, or heard of one from another worker.
fuzz_line() { # LOG
    awk '/^stat::number_of_executed_units:/ { runs = $2 }
        $2 ~ /NEW|INITED|REDUCE|RELOAD/ {
            for (i = 3; i < NF; i++) if ($i == "cov:") {
                if ($2 == "INITED") start = $(i + 1)
                if ($(i + 1) > most) { most = $(i + 1); at = substr($1, 2) }
            } }
        END { printf "%d runs, %d edges (%d at the start), no finding, " \
            "the last new edge at %d: %d %%\n", runs, most, start, at, 100 * at / runs }' "$1"
}
