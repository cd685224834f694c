// SPDX-License-Identifier: Apache-2.0
// cuda_timeline.cpp: when the kernels, copies and fills of a program began and ended, by CUPTI, as
// overlapped as they run. Unlike ncu it does not run them one by one; it costs about a tenth of the
// speed.
//
//     g++ -O2 -shared -fPIC -I$CUDA/include -L$CUDA/lib tools/cuda_timeline.cpp -o libtimeline.so \
//         -lcupti
//     CUDA_INJECTION64_PATH=$PWD/libtimeline.so TIMELINE=steps.txt bench_gpu MODEL cuda one
//     python3 tools/cuda_timeline.py steps.txt
//
// Lines of $TIMELINE: start and end in ns, blocks (KiB of a copy or fill), name; of the last 4,000.
#include <cupti.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

struct launch {
    unsigned long long start, end;
    unsigned blocks;
    std::string name;
};
std::vector<launch> launches;

void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *records) {
    *size = 8 << 20;
    *buffer = (uint8_t *)aligned_alloc(8, *size);
    *records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t *buffer, size_t, size_t valid) {
    CUpti_Activity *record = nullptr;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const auto *k = (const CUpti_ActivityKernel9 *)record;
            launches.push_back({k->start, k->end, (unsigned)(k->gridX * k->gridY * k->gridZ),
                                k->name ? k->name : "?"});
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const auto *c = (const CUpti_ActivityMemcpy5 *)record;
            launches.push_back({c->start, c->end, (unsigned)(c->bytes >> 10),
                                "copy_kind_" + std::to_string(c->copyKind)});
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            const auto *m = (const CUpti_ActivityMemset4 *)record;
            launches.push_back({m->start, m->end, (unsigned)(m->bytes >> 10), "fill"});
        }
    free(buffer);
}

void write_last() {
    constexpr size_t LAST = 4000;
    const char *path = getenv("TIMELINE");
    cuptiActivityFlushAll(1);
    FILE *f = fopen(path ? path : "timeline.txt", "w");
    if (!f)
        return perror("timeline");
    std::sort(launches.begin(), launches.end(),
              [](const launch &a, const launch &b) { return a.start < b.start; });
    const size_t from = launches.size() > LAST ? launches.size() - LAST : 0;
    for (size_t i = from; i < launches.size(); i++)
        fprintf(f, "%llu %llu %u %s\n", launches[i].start - launches[from].start,
                launches[i].end - launches[from].start, launches[i].blocks,
                launches[i].name.c_str());
    fclose(f);
}

} // namespace

extern "C" int InitializeInjection(void) {
    CUptiResult result = cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
    for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                          CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
        if (!result)
            result = cuptiActivityEnable(kind);
    if (result)
        fprintf(stderr, "timeline: CUPTI error %d\n", (int)result);
    atexit(write_last);
    return 1;
}
