// SPDX-License-Identifier: Apache-2.0
// cuda_fault.cpp: breaks the GPU under a program: once the file $FAULT exists, a kernel writes to an
// address that nothing is mapped at, after which every call of that process fails, as after a fault
// of the device or of a kernel of ours. tests/soak/device_fault.py looks at what a server then says.
//
//     g++ -O2 -shared -fPIC -I$CUDA/include tools/cuda_fault.cpp -o libfault.so
//     CUDA_INJECTION64_PATH=$PWD/libfault.so FAULT=/tmp/now kvasir serve --device cuda ...
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

const char *const KERNEL = ".version 7.0\n.target sm_80\n.address_size 64\n"
                           ".visible .entry fault() {\n"
                           "  .reg .u64 %at;\n  .reg .u32 %value;\n"
                           "  mov.u64 %at, 16;\n  mov.u32 %value, 1;\n"
                           "  st.global.u32 [%at], %value;\n  ret;\n}\n";

// The driver is the program's: nothing is linked.
template <class F> F driver(const char *name) {
    static void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    return library ? (F)dlsym(library, name) : nullptr;
}

void must(CUresult result, const char *what) {
    if (result)
        fprintf(stderr, "cuda_fault: %s: error %d\n", what, (int)result);
}

void break_device() {
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    must(driver<decltype(&cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&context, 0),
         "context");
    must(driver<decltype(&cuCtxSetCurrent)>("cuCtxSetCurrent")(context), "context");
    must(driver<decltype(&cuModuleLoadData)>("cuModuleLoadData")(&module, KERNEL), "module");
    must(driver<decltype(&cuModuleGetFunction)>("cuModuleGetFunction")(&kernel, module, "fault"),
         "kernel");
    must(driver<decltype(&cuLaunchKernel)>("cuLaunchKernel")(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr,
                                                             nullptr, nullptr),
         "launch");
    fprintf(stderr, "cuda_fault: a kernel has written to address 16\n");
}

} // namespace

extern "C" int InitializeInjection(void) {
    std::thread([] {
        const char *file = getenv("FAULT");
        while (!file || access(file, F_OK))
            usleep(1000);
        break_device();
    }).detach();
    return 1;
}
