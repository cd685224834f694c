/* SPDX-License-Identifier: Apache-2.0 */
#include "tiny_server.h"

#include <stdio.h>
#include <time.h>

#include "engine/engine_internal.h"
#include "tensors.h"

void tiny_server_init(struct tiny_server *t) {
    *t = (struct tiny_server){.weights = SHARED_DIR "/fixtures/tiny/llama",
                              .engine_options = kvasir_engine_defaults(),
                              .options = server_defaults()};
    t->engine_options.context.ctx = 512;
    t->engine_options.context.threads = 2;
    t->engine_options.context.prefill_chunk = 96;
    t->options.port = 0;
    t->options.model_name = "tiny";
    t->options.text_timeout_s = 300; /* a sanitizer on a busy machine takes minutes */
}

static void write_model(struct temp_folder *folder, const char *weights,
                        const struct byte_tokenizer_more *more) {
    static const struct byte_tokenizer_more NONE = {"", "", ""};
    static const char *const FILES[] = {"config.json", "model.safetensors"};
    char from[256], config[128];
    snprintf(from, sizeof from, "%s/config.json", weights);
    skip_without(from);
    temp_folder_make(folder);
    snprintf(config, sizeof config, "%s/tokenizer_config.json", folder->path);
    byte_tokenizer_write_more(temp_file(folder, "tokenizer.json"), config,
                              "{% for m in messages %}{{ m.content }}{% endfor %}",
                              more ? more : &NONE);
    for (int i = 0; i < 2; i++) {
        snprintf(from, sizeof from, "%s/%s", weights, FILES[i]);
        if (symlink(from, temp_file(folder, FILES[i])) != 0)
            abort();
    }
}

void tiny_server_open(struct tiny_server *t) {
    kvasir_error err;
    write_model(&t->folder, t->weights, t->more);
    if (kvasir_model_open(t->folder.path, &t->model, &err) ||
        engine_create_take(t->model, &t->engine_options, t->backend, NULL, &t->engine, &err) ||
        server_create(&t->options, t->model, t->engine, &t->server, &err)) {
        printf("%s\n", err.text);
        exit(1);
    }
    t->port = server_port(t->server);
}

bool tiny_server_idle(struct tiny_server *t, int timeout_ms, kvasir_engine_stats *stats) {
    for (int ms = 0; ms < timeout_ms; ms += 5) {
        kvasir_engine_get_stats(t->engine, stats);
        if (server_open_requests(t->server) == 0 && stats->running == 0 && stats->waiting == 0)
            return true;
        pause_ms(5);
    }
    return false;
}

void tiny_server_close(struct tiny_server *t) {
    server_destroy(t->server);
    kvasir_engine_destroy(t->engine);
    kvasir_model_close(t->model);
    temp_folder_remove(&t->folder);
}
