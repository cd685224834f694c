/* SPDX-License-Identifier: Apache-2.0 */
/* device.c: which backend a context's options ask for, and how much memory is free there. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#ifdef KVASIR_CUDA
#include "backend/cuda/cuda.h"
#endif

enum { DEVICE_ANY = -1, DEVICE_CPU = -2, DEVICE_NUMBERS = 64 };

/* "auto", "cpu", "cuda" (the first GPU) or "cuda:N". */
static kvasir_status parse_device(const char *text, int *out, kvasir_error *err) {
    char *end = NULL;
    if (strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0) {
        *out = text[0] == 'a' ? DEVICE_ANY : DEVICE_CPU;
        return KVASIR_OK;
    }
    *out = 0;
    if (strcmp(text, "cuda") == 0)
        return KVASIR_OK;
    if (strncmp(text, "cuda:", 5) == 0 && text[5] >= '0' && text[5] <= '9') {
        const unsigned long n = strtoul(text + 5, &end, 10);
        *out = (int)(n < DEVICE_NUMBERS ? n : DEVICE_NUMBERS);
        if (!*end)
            return KVASIR_OK;
        if (*end == ',')
            return fail_field(err, KVASIR_ERR_UNSUPPORTED, "context.device",
                              "\"%.40s\" names several devices: a context uses one", text);
    }
    return fail_field(err, KVASIR_ERR_ARGUMENT, "context.device",
                      "\"%.40s\" is not auto, cpu, cuda or cuda:N", text);
}

int kvasir_gpus(void) {
#ifdef KVASIR_CUDA
    return backend_cuda_devices();
#else
    return 0;
#endif
}

static kvasir_status create_cuda(int device, int act_bits, struct backend **out,
                                 kvasir_error *err) {
#ifdef KVASIR_CUDA
    const struct backend_cuda_options cuda = {.device = device, .act_bits = act_bits};
    return backend_cuda_create(out, &cuda, err);
#else
    (void)device;
    (void)act_bits;
    *out = NULL;
    return fail(err, KVASIR_ERR_UNSUPPORTED,
                "this program was built without CUDA: build it with `make cuda`");
#endif
}

kvasir_status device_create(const kvasir_context_options *o, struct backend **out,
                            kvasir_error *err) {
    struct backend_cpu_options cpu;
    int device;
    TRY(parse_device(o->device, &device, err));
    TRY(options_backend(o, &cpu, err)); /* a bad tier is an error on every device */
    if (device != DEVICE_CPU) {
        const kvasir_status status =
            create_cuda(device == DEVICE_ANY ? 0 : device, o->act_bits, out, err);
        if (status != KVASIR_OK && device != DEVICE_ANY && err)
            err->field = "context.device";
        if (status != KVASIR_ERR_UNSUPPORTED || device != DEVICE_ANY)
            return status;
    }
    return backend_cpu_create(out, &cpu, err);
}

kvasir_status kvasir_free_memory(const char *device, uint64_t *bytes, kvasir_error *err) {
    kvasir_context_options o = kvasir_context_defaults();
    struct backend_info info;
    struct backend *b;
    o.device = device;
    o.threads = 1;
    TRY(device_create(&o, &b, err));
    backend_info(b, &info);
    backend_destroy(b);
    *bytes = device_free_bytes(&info);
    return KVASIR_OK;
}
