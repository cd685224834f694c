/* SPDX-License-Identifier: Apache-2.0 */
/* info.c: `kvasir info`, what a checkpoint contains and what a token of its KV cache costs in every
 * format. Opens the files but runs nothing. */
#include "cli.h"

#include <string.h>

struct info_args {
    kvasir_model_options load;
    const char *model;
    bool json;
};

/* clang-format off */
static const struct option OPTIONS[] = {
    {.name = "MODEL", .kind = OPTION_TEXT, .offset = offsetof(struct info_args, model),
     .required = true, .help = "GGUF file, or folder with config.json and safetensors"},
    {.name = "--json", .kind = OPTION_FLAG, .offset = offsetof(struct info_args, json),
     .help = "print one JSON object"},
    LOAD_OPTIONS(struct info_args, load),
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "info",
    .summary = "Shows what a model file holds and what its KV cache costs.",
    .usage = "MODEL [--json]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
};

static const char *const FORMATS[] = {"f32", "f16", "bf16", "8",    "6",    "5",  "4",
                                      "3",   "2",   "8,4",  "r8,4", "t5,4", "t4", "t3"};
static const char *const GROUPS[] = {"128", "64", "32"};

/* Exact formats and tiles have no group size. */
static bool has_groups(const char *format) {
    return !strchr(format, 'f') && *format != 't';
}

/* Encoded when a page is full: a sequence's newest page takes 16 bits beside it until then. */
static bool has_open_page(const char *format) {
    return *format == 'r' || *format == 't';
}

/* False if the group size does not divide the head size. */
static bool token_bytes(const kvasir_model *m, const char *format, const char *group,
                        uint64_t *bytes) {
    return kvasir_model_kv_bytes(m, format, has_groups(format) ? group : NULL, bytes, NULL) ==
           KVASIR_OK;
}

static void print_formats(const kvasir_model *m, const kvasir_model_info *i) {
    uint64_t bytes, bytes16 = 0;
    token_bytes(m, "f16", NULL, &bytes16);
    printf("\nKV cache    %14s %8s%s\n", "bytes a token", "saving",
           i->ctx_train ? "   at the trained context" : "");
    for (size_t f = 0; f < sizeof FORMATS / sizeof *FORMATS; f++)
        for (size_t g = 0; g < sizeof GROUPS / sizeof *GROUPS; g++) {
            char name[24], total[24];
            if (!has_groups(FORMATS[f]) && g > 0)
                break;
            if (!token_bytes(m, FORMATS[f], GROUPS[g], &bytes))
                continue;
            snprintf(name, sizeof name, "%s%s%s", FORMATS[f], has_groups(FORMATS[f]) ? " g" : "",
                     has_groups(FORMATS[f]) ? GROUPS[g] : "");
            printf("  %-9s %14llu %7.2fx", name, (unsigned long long)bytes,
                   ratio((double)bytes16, (double)bytes));
            if (i->ctx_train)
                printf("   %s", human_bytes((double)bytes * i->ctx_train, total));
            printf("\n");
        }
    char open[24], token[24];
    printf("\nr and t formats encode a page when it is full: until then the newest tokens of a "
           "sequence are\n16-bit, too, up to %s; so are those of --kv-exact-tail, %s each.\n",
           human_bytes((double)bytes16 * LAB_PAGE_TOKENS, open),
           human_bytes((double)bytes16, token));
    printf("Of t formats and auto the first %d tokens are 16-bit (--quantized-kv-start).\n",
           LAB_PAGE_TOKENS);
}

static int print_text(const kvasir_model *m, const kvasir_model_info *i) {
    char bytes[24];
    kvasir_tokenizer_info text;
    kvasir_tokenizer_get_info(kvasir_model_tokenizer(m), &text);
    printf("name        %s\n", i->name && *i->name ? i->name : "-");
    printf("file        %s, architecture %s\n", i->format, i->arch);
    printf("parameters  %.1f M, weights %s (%s)\n", (double)i->parameters / 1e6,
           human_bytes((double)i->weight_bytes, bytes), i->weight_types);
    printf("layers      %u of width %u, feed-forward %u\n", i->layers, i->dim, i->ffn_dim);
    printf("attention   %u heads, %u KV heads of %u\n", i->heads, i->kv_heads, i->head_dim);
    printf("vocabulary  %u\n", i->vocab);
    printf("tokenizer   %s\n", text.name ? text.name : "none that this version reads");
    printf("fingerprint %s\n", i->fingerprint);
    printf("template    %s\n", text.has_chat_template ? "yes" : "no");
    if (i->ctx_train)
        printf("context     %u tokens trained\n", i->ctx_train);
    if (i->window)
        printf("window      %u tokens\n", i->window);
    fputs("threads     ", stdout);
    write_machine_threads(stdout);
    fputs("\n", stdout);
    print_formats(m, i);
    return finish_output(&COMMAND);
}

static json_t *formats_json(const kvasir_model *m) {
    json_t *list = json_array();
    uint64_t bytes, bytes16 = 0;
    token_bytes(m, "f16", NULL, &bytes16);
    for (size_t f = 0; f < sizeof FORMATS / sizeof *FORMATS; f++)
        for (size_t g = 0; g < sizeof GROUPS / sizeof *GROUPS; g++) {
            bool groups = has_groups(FORMATS[f]);
            if ((!groups && g > 0) || !token_bytes(m, FORMATS[f], GROUPS[g], &bytes))
                continue;
            json_t *o = json_object();
            put_text(o, "kv_bits", FORMATS[f]);
            put_text(o, "kv_group_size", groups ? GROUPS[g] : NULL);
            put_whole(o, "bytes_per_token", bytes);
            put_real(o, "ratio", ratio((double)bytes16, (double)bytes));
            put_whole(o, "open_page_bytes",
                      has_open_page(FORMATS[f]) ? bytes16 * LAB_PAGE_TOKENS : 0);
            json_array_append_new(list, o);
        }
    return list;
}

static int print_json(const kvasir_model *m, const kvasir_model_info *i) {
    json_t *o = json_object();
    kvasir_tokenizer_info text;
    kvasir_tokenizer_get_info(kvasir_model_tokenizer(m), &text);
    put_text(o, "arch", i->arch);
    put_text(o, "name", i->name);
    put_text(o, "format", i->format);
    put_text(o, "tokenizer", text.name);
    put_text(o, "weight_types", i->weight_types);
    put_text(o, "fingerprint", i->fingerprint);
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"layers", i->layers},
                   {"dim", i->dim},
                   {"ffn_dim", i->ffn_dim},
                   {"heads", i->heads},
                   {"kv_heads", i->kv_heads},
                   {"head_dim", i->head_dim},
                   {"vocab", i->vocab},
                   {"ctx_train", i->ctx_train},
                   {"window", i->window},
                   {"parameters", i->parameters},
                   {"weight_bytes", i->weight_bytes}};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        put_whole(o, numbers[k].key, numbers[k].value);
    json_object_set_new(o, "has_chat_template", json_boolean(text.has_chat_template));
    put_machine_threads(o);
    json_object_set_new(o, "kv_formats", formats_json(m));
    return json_print(&COMMAND, o);
}

int info_main(int argc, char **argv) {
    struct info_args a = {.load = kvasir_model_defaults()};
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    kvasir_model *model;
    kvasir_error err;
    if (kvasir_model_open_with(a.model, &a.load, &model, &err))
        return library_error(&COMMAND, &err);
    kvasir_model_info info;
    kvasir_model_get_info(model, &info);
    code = a.json ? print_json(model, &info) : print_text(model, &info);
    kvasir_model_close(model);
    return code;
}
