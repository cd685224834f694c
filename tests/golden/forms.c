/* SPDX-License-Identifier: Apache-2.0 */
/* Every form in which safetensors of the families occur, made from the tiny models of
 * ../shared/fixtures/tiny in a temporary folder and run: f32 pages, act_bits 16.
 *
 *   spelling   config.json in old and new spellings, or without fields that its class has defaults
 *              for: the same logits, bit by bit, as from the fixture, and within 2e-4 of the golden
 *   places     tensors with other names, in other orders, joined or split, together with tensors
 *              for pictures and sound: likewise
 *   codes      quantized as by mlx and Hugging Face: against a folder of the values that the codes
 *              stand for, in float32 and in the fixture's form. They differ only in the rounding of
 *              activations to 16 bits, which matmuls of quantized weights do: 2e-4 as above
 *
 * Forms are those of transformers 5.17 (names, checkpoint layouts) and mlx-lm 0.31 (sanitize() of
 * its models), written here from their sources, not from our readers.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvasir.h>

#include "forms.h"
#include "tensors.h"

#include <cmocka.h>

enum { LAYERS = 4 }; /* of every fixture */
static const double BOUND = 2e-4;

static char folder[64]; /* where a form is written */
static int failed;

/* ---- running --------------------------------------------------------------------------------- */

struct logits {
    float *values; /* [rows][vocab] */
    size_t rows, vocab, next;
};

static bool keep_rows(void *user, size_t first, size_t rows, const float *values) {
    struct logits *l = user;
    memcpy(l->values + first * l->vocab, values, rows * l->vocab * sizeof *values);
    l->next = first + rows;
    return true;
}

static void fixture_path(char path[512], const char *fixture, const char *file) {
    snprintf(path, 512, "%s/fixtures/tiny/%s%s", SHARED_DIR, fixture, file);
}

/* Logits of the fixture's tokens from the model at `path`; values NULL: an error was printed. */
static struct logits run(const char *path, const char *fixture, uint32_t ctx_length) {
    char golden_path[512];
    struct golden_file file;
    kvasir_error err;
    kvasir_model *model;
    kvasir_context *ctx;
    kvasir_seq *seq = NULL;
    kvasir_model_info info;
    struct logits l = {0};
    if (kvasir_model_open(path, &model, &err) != KVASIR_OK) {
        printf("%s\n", err.text);
        return l;
    }
    fixture_path(golden_path, fixture, "/golden.safetensors");
    assert_true(golden_open(&file, golden_path));
    struct golden ids = golden_get(&file, "input_ids");
    kvasir_model_get_info(model, &info);
    l.rows = ids.n;
    l.vocab = info.vocab;
    l.values = malloc(l.rows * l.vocab * sizeof *l.values);
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = "f32";
    o.act_bits = 16;
    o.ctx = ctx_length;
    o.cache_bytes = 64 << 20;
    kvasir_eval_options eval = {
        .struct_size = sizeof(kvasir_eval_options), .on_logits = keep_rows, .user = &l};
    if (kvasir_context_create(model, &o, &ctx, &err) != KVASIR_OK ||
        kvasir_seq_create(ctx, &seq, &err) != KVASIR_OK ||
        kvasir_seq_eval(seq, ids.data, ids.n, &eval, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(l.next, l.rows);
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(ctx);
    kvasir_model_close(model);
    golden_close(&file);
    return l;
}

static double off_golden(const struct logits *l, const char *fixture) {
    char path[512];
    struct golden_file file;
    fixture_path(path, fixture, "/golden.safetensors");
    assert_true(golden_open(&file, path));
    struct golden at = golden_get(&file, "positions"), golden = golden_get(&file, "logits");
    const int32_t *positions = at.data;
    const float *right = golden.data;
    double worst = 0, largest = 0;
    assert_int_equal(golden.n, at.n * l->vocab);
    for (size_t i = 0; i < golden.n; i++) {
        double x = (double)l->values[(size_t)positions[i / l->vocab] * l->vocab + i % l->vocab];
        worst = fmax(worst, fabs(x - (double)right[i]));
        largest = fmax(largest, fabs((double)right[i]));
    }
    golden_close(&file);
    return worst / largest;
}

static double off_other(const struct logits *a, const struct logits *b) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < a->rows * a->vocab; i++) {
        worst = fmax(worst, fabs((double)a->values[i] - (double)b->values[i]));
        largest = fmax(largest, fabs((double)b->values[i]));
    }
    return worst / largest;
}

static void judge(const char *fixture, const char *what, double off, double bound,
                  const char *than) {
    bool good = off <= bound;
    printf("%-13s %-58s %.2e of %s%s\n", fixture, what, off, than,
           good ? "" : "   <- OUT OF BOUNDS");
    failed += !good;
}

/* The form in `folder` gives the golden's logits, and the fixture's own bit by bit. */
static void check_same(struct form *f, const char *fixture, uint32_t ctx, const char *what) {
    char path[512];
    form_write(f, folder);
    form_free(f);
    struct logits ours = run(folder, fixture, ctx);
    if (!ours.values) {
        printf("%-13s %-58s DOES NOT OPEN\n", fixture, what);
        failed++;
        return;
    }
    fixture_path(path, fixture, "");
    struct logits own = run(path, fixture, ctx);
    double off = off_other(&ours, &own);
    judge(fixture, what, off_golden(&ours, fixture), BOUND, "the golden");
    if (off > 0)
        judge(fixture, what, off, 0, "the fixture");
    free(ours.values);
    free(own.values);
}

/* Codes against the values that they stand for. */
static void check_codes(struct form *codes, struct form *values, const char *fixture,
                        const char *what) {
    form_write(values, folder);
    form_free(values);
    struct logits right = run(folder, fixture, 0);
    form_write(codes, folder);
    form_free(codes);
    struct logits ours = run(folder, fixture, 0);
    if (!ours.values || !right.values) {
        printf("%-13s %-58s DOES NOT OPEN\n", fixture, what);
        failed++;
    } else {
        judge(fixture, what, off_other(&ours, &right), BOUND, "the decoded weights");
    }
    free(ours.values);
    free(right.values);
}

static struct form fixture_form(const char *fixture) {
    char path[512];
    struct form f;
    fixture_path(path, fixture, "");
    form_read(&f, path);
    return f;
}

static void name_of(char name[160], int layer, const char *part) {
    snprintf(name, 160, "model.layers.%d.%s", layer, part);
}

/* ---- spelling -------------------------------------------------------------------------------- */

#define OLD(theta) "'rope_parameters':null,'rope_theta':" theta

static const struct {
    const char *fixture;
    uint32_t ctx;
    const char *patch, *what;
} SPELLINGS[] = {
    {"llama", 0,
     "{" OLD("500000.0") ",'rope_scaling':{'rope_type':'llama3','factor':8.0,"
                         "'low_freq_factor':1.0,'high_freq_factor':4.0,"
                         "'original_max_position_embeddings':128}}",
     "rope_theta and rope_scaling"},
    {"mistral", 0, "{" OLD("10000.0") ",'rope_scaling':null}", "rope_theta"},
    {"qwen2", 0, "{" OLD("10000.0") ",'layer_types':null,'max_window_layers':4}",
     "rope_theta, no layer_types"},
    {"qwen3_yarn", 0,
     "{" OLD("1e6") ",'rope_scaling':{'type':'yarn','factor':4,"
                    "'original_max_position_embeddings':128}}",
     "rope_theta and rope_scaling.type"},
    {"qwen3_moe", 0,
     "{" OLD("1e4") ",'num_local_experts':null,'num_experts':8,"
                    "'shared_expert_intermediate_size':0,'max_window_layers':48}",
     "rope_theta, num_experts"},
    {"smollm3", 0,
     "{'rope_parameters':null,'no_rope_layers':null,'no_rope_layer_interval':null,"
     "'layer_types':null,'tie_word_embeddings':null}",
     "all that its class says"},
    {"granite", 0, "{" OLD("1e4") "}", "rope_theta"},
    {"olmo3", 0, "{" OLD("500000") ",'layer_types':null}", "rope_theta, no layer_types"},
    {"olmo3", 0, "{'rope_parameters':null,'layer_types':null}", "no rope at all"},
    {"gemma2", 0,
     "{" OLD("1e4") ",'layer_types':null,'attn_logit_softcapping':null,"
                    "'final_logit_softcapping':null,'hidden_act':'gelu_pytorch_tanh'}",
     "rope_theta, no layer_types, caps of its class"},
    {"gemma3", 0,
     "{" OLD("1e6") ",'rope_local_base_freq':10000.0,'sliding_window_pattern':4,"
                    "'layer_types':null,'_sliding_window_pattern':null}",
     "rope_local_base_freq, sliding_window_pattern"},
    {"gemma3", 0, "{'rope_parameters':null,'tie_word_embeddings':null}", "no rope at all"},
    {"gemma4", 0,
     "{'rope_parameters':null,'layer_types':null,'per_layer_config':null,'global_head_dim':64,"
     "'use_bidirectional_attention':'vision','num_global_key_value_heads':1}",
     "rope and layers of its class, global_head_dim"},
    {"gemma4_full", 0,
     "{'per_layer_config':null,'global_head_dim':128,'num_global_key_value_heads':1}",
     "global_head_dim, num_global_key_value_heads"},
    {"gemma4_shared", 0, "{'per_layer_config':null,'global_head_dim':128}", "global_head_dim"},
    {"gpt_oss", 0,
     "{" OLD("150000") ",'rope_scaling':{'rope_type':'yarn','factor':32.0,'beta_fast':32.0,"
                       "'beta_slow':1.0,'truncate':false,"
                       "'original_max_position_embeddings':4096},'layer_types':null,"
                       "'swiglu_limit':7.0,'experts_per_token':2,'initial_context_length':4096}",
     "as OpenAI's own, no layer_types"},
    {"qwen3_next", 0,
     "{" OLD("1e4") ",'layer_types':null,'full_attention_interval':4,'norm_topk_prob':null}",
     "rope_theta, partial_rotary_factor, no layer_types"},
    {"qwen3_next", 0, "{" OLD("1e4") ",'partial_rotary_factor':null}", "a quarter by its class"},
    {"qwen3_5", 0,
     "{'partial_rotary_factor':null,'layer_types':null,'rope_parameters':{'rope_theta':1e7,"
     "'rope_type':'default','mrope_section':[1,1,2],'mrope_interleaved':true}}",
     "mrope_section, a quarter by its class"},
    {"qwen3_5", 0,
     "{'partial_rotary_factor':null,'rope_parameters':null,'rope_theta':1e7,"
     "'rope_scaling':{'type':'mrope','mrope_section':[1,1,2],'partial_rotary_factor':0.25}}",
     "rope_scaling of mrope"},
    {"qwen3_5_moe", 0, "{'intermediate_size':null}", "no intermediate_size"},
    {"lfm2", 0,
     "{'rope_parameters':null,'layer_types':null,'full_attn_idxs':[2],'intermediate_size':null,"
     "'block_ff_dim':256,'block_dim':128,'tie_word_embeddings':null,'tie_embedding':true}",
     "full_attn_idxs, block_ff_dim, tie_embedding"},
};

/* Leaves the factors where they are, as there are many. */
static void respell_phi3(const char *fixture, uint32_t ctx, const char *type_key,
                         const char *type) {
    struct form f = fixture_form(fixture);
    char what[64];
    json_t *rope = json_deep_copy(json_object_get(f.config, "rope_parameters"));
    json_object_del(rope, "rope_type");
    json_object_del(rope, "original_max_position_embeddings");
    json_object_del(rope, "rope_theta");
    json_object_del(rope, "partial_rotary_factor");
    json_object_set_new(rope, type_key, json_string(type));
    json_object_set_new(f.config, "rope_scaling", rope);
    form_configure(&f, "{" OLD("10000.0") "}");
    snprintf(what, sizeof what, "rope_scaling.%s %s, original length beside it", type_key, type);
    check_same(&f, fixture, ctx, what);
}

static void test_spelling(void **state) {
    (void)state;
    failed = 0;
    for (size_t i = 0; i < sizeof SPELLINGS / sizeof *SPELLINGS; i++) {
        struct form f = fixture_form(SPELLINGS[i].fixture);
        form_configure(&f, SPELLINGS[i].patch);
        check_same(&f, SPELLINGS[i].fixture, SPELLINGS[i].ctx, SPELLINGS[i].what);
    }
    respell_phi3("phi3_long", 0, "type", "su");
    respell_phi3("phi3_long", 0, "type", "longrope");
    respell_phi3("phi3_short", 2048, "rope_type", "longrope");
    respell_phi3("phi3_short", 2048, "type", "yarn");
    assert_int_equal(failed, 0);
}

/* ---- wrappers -------------------------------------------------------------------------------- */

struct wrapper {
    const char *home; /* in place of "model." */
    const char *head; /* before "lm_head." */
};
static const struct wrapper HUGGING_FACE = {"model.language_model.", ""},
                            MLX = {"language_model.model.", "language_model."},
                            BARE = {"language_model.", ""};

/* Tensors that do not belong to the language model (vision, sound, MTP), in various shapes and
 * types. */
static void add_other_parts(struct form *f) {
    static const struct {
        const char *name, *dtype;
        uint64_t dims[FORM_DIMS_MAX + 1];
    } parts[] = {
        {"model.vision_tower.encoder.layers.0.self_attn.q_proj.weight", "BF16", {8, 8}},
        {"vision_tower.vision_model.embeddings.position_ids", "I64", {1, 16}},
        {"vision_tower.blocks.0.attn.qkv.weight", "U32", {8, 4}},
        {"vision_tower.blocks.0.attn.qkv.scales", "F16", {8, 1}},
        {"vision_tower.blocks.0.attn.qkv.biases", "F16", {8, 1}},
        {"model.visual.patch_embed.proj.weight", "F32", {4, 3, 2, 2, 2}},
        {"visual.merger.norm.weight", "BF16", {8}},
        {"multi_modal_projector.mm_input_projection_weight", "BF16", {8, 8}},
        {"model.embed_vision.embedding_projection.weight", "BF16", {8, 8}},
        {"model.audio_tower.layers.0.feed_forward1.ffw_layer_1.input_max", "F32", {1}},
        {"embed_audio.embedding_projection.weight", "F16", {8, 8}},
        {"mtp.layers.0.input_layernorm.weight", "BF16", {8}},
        {"mtp.fc.weight", "U8", {8, 8}},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        form_add(f, parts[i].name, parts[i].dtype, parts[i].dims);
}

static void wrap(struct form *f, const char *class, const struct wrapper *w) {
    char name[160];
    for (size_t i = 0; i < f->n; i++) {
        char *old = f->list[i].name;
        bool inner = strncmp(old, "model.", 6) == 0;
        snprintf(name, sizeof name, "%s%s", inner ? w->home : w->head, inner ? old + 6 : old);
        snprintf(old, sizeof name, "%s", name);
    }
    add_other_parts(f);
    json_t *text = f->config;
    json_object_del(text, "architectures");
    const json_t *tied = json_object_get(text, "tie_word_embeddings");
    f->config = json_pack("{s:[s],s:o,s:{s:i},s:{s:f},s:b}", "architectures", class, "text_config",
                          text, "vision_config", "hidden_size", 8, "audio_config", "x", -1e9,
                          "tie_word_embeddings", !tied || json_is_true(tied));
    assert_non_null(f->config);
}

/* Wrapped models, without fields that their class has defaults for. */
static void test_wrappers(void **state) {
    (void)state;
    failed = 0;
    static const struct {
        const char *fixture, *class, *patch;
    } models[] = {
        {"gemma3", "Gemma3ForConditionalGeneration",
         "{'rms_norm_eps':null,'tie_word_embeddings':null,'sliding_window_pattern':4,"
         "'layer_types':null,'head_dim':64}"},
        {"gemma4", "Gemma4ForConditionalGeneration", "{'rms_norm_eps':null}"},
        {"gemma4_full", "Gemma4ForConditionalGeneration", "{}"},
        {"gemma4_shared", "Gemma4ForConditionalGeneration", "{}"},
        {"qwen3_5", "Qwen3_5ForConditionalGeneration",
         "{'rms_norm_eps':null,'linear_conv_kernel_dim':null,'layer_types':null}"},
        {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration",
         "{'rms_norm_eps':null,'intermediate_size':null}"},
    };
    static const struct {
        const struct wrapper *w;
        const char *what;
    } homes[] = {{&HUGGING_FACE, "wrapped: model.language_model."},
                 {&MLX, "wrapped: language_model.model."},
                 {&BARE, "wrapped: language_model., the bare model's"}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t j = 0; j < 3; j++) {
            struct form f = fixture_form(models[i].fixture);
            form_configure(&f, models[i].patch);
            wrap(&f, models[i].class, homes[j].w);
            check_same(&f, models[i].fixture, 0, homes[j].what);
        }
    assert_int_equal(failed, 0);
}

/* ---- experts --------------------------------------------------------------------------------- */

static uint32_t experts_of(const struct form *f) {
    static const char *const keys[] = {"num_experts", "num_local_experts"};
    const json_t *n = json_object_get(f->config, keys[0]);
    return (uint32_t)json_integer_value(n ? n : json_object_get(f->config, keys[1]));
}

/* Joins experts.E.PROJ.weight of all experts into one tensor [experts][n][k]; drops the
 * originals. */
static void stack(struct form *f, int layer, const char *proj, const char *to) {
    char name[160], part[96];
    const uint32_t n = experts_of(f);
    for (uint32_t e = 0; e < n; e++) {
        snprintf(part, sizeof part, "mlp.experts.%u.%s.weight", e, proj);
        name_of(name, layer, part);
        const struct form_tensor *one = form_find(f, name);
        assert_non_null(one);
        char joint[160];
        name_of(joint, layer, to);
        if (e == 0)
            form_add(f, joint, "BF16", (uint64_t[]){n, one->dims[0], one->dims[1], 0});
        one = form_find(f, name);
        memcpy(form_find(f, joint)->data + e * one->bytes, one->data, one->bytes);
        form_remove(f, name);
    }
}

static void stack_all(struct form *f, const char *home) {
    static const char *const projs[] = {"gate_proj", "up_proj", "down_proj"};
    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < 3; i++) {
            char part[96];
            snprintf(part, sizeof part, "%s.%s.weight", home, projs[i]);
            stack(f, layer, projs[i], part);
        }
}

/* [experts][gate's rows, then up's][k] */
static void join_gate_up(struct form *f, int layer, const char *gate, const char *up,
                         const char *to) {
    char a[160], b[160], joint[160];
    name_of(a, layer, gate);
    name_of(b, layer, up);
    name_of(joint, layer, to);
    const uint64_t *d = form_find(f, a)->dims;
    const uint64_t dims[] = {d[0], 2 * d[1], d[2], 0};
    uint8_t *out = form_add(f, joint, "BF16", dims)->data;
    const struct form_tensor *halves[] = {form_find(f, a), form_find(f, b)};
    const size_t each = halves[0]->bytes / dims[0];
    for (uint64_t e = 0; e < dims[0]; e++)
        for (int half = 0; half < 2; half++, out += each)
            memcpy(out, halves[half]->data + e * each, each);
    form_remove(f, a);
    form_remove(f, b);
}

static void fuse_experts(struct form *f) {
    for (int layer = 0; layer < LAYERS; layer++) {
        stack(f, layer, "gate_proj", "gate");
        stack(f, layer, "up_proj", "up");
        stack(f, layer, "down_proj", "mlp.experts.down_proj");
        join_gate_up(f, layer, "gate", "up", "mlp.experts.gate_up_proj");
    }
}

/* A new tensor of n rows of every matrix of a stack: row `first` and every step-th after it. */
static void cut_stack(struct form *f, int layer, const char *from, uint64_t first, uint64_t step,
                      uint64_t n, const char *to) {
    char a[160], b[160];
    name_of(a, layer, from);
    name_of(b, layer, to);
    const struct form_tensor *t = form_find(f, a);
    assert_non_null(t);
    const uint64_t experts = t->dims[0], rows = t->dims[1], row = t->bytes / experts / rows;
    uint64_t dims[FORM_DIMS_MAX + 1] = {experts, n, t->n_dims > 2 ? t->dims[2] : 0};
    uint8_t *out = form_add(f, b, t->dtype, dims)->data;
    t = form_find(f, a);
    for (uint64_t e = 0; e < experts; e++)
        for (uint64_t i = 0; i < n; i++, out += row)
            memcpy(out, t->data + (e * rows + first + i * step) * row, row);
}

static void test_experts(void **state) {
    (void)state;
    failed = 0;
    static const char *const fixtures[] = {"qwen3_moe", "qwen3_next", "qwen3_5_moe"};
    for (size_t i = 0; i < 3; i++) {
        struct form f = fixture_form(fixtures[i]);
        fuse_experts(&f);
        check_same(&f, fixtures[i], 0, "mlp.experts.gate_up_proj, one tensor for all experts");
        f = fixture_form(fixtures[i]);
        stack_all(&f, "mlp.switch_mlp");
        check_same(&f, fixtures[i], 0, "mlx's mlp.switch_mlp");
    }
    struct form f = fixture_form("gemma4_full");
    for (int layer = 0; layer < LAYERS; layer++) {
        char name[160];
        cut_stack(&f, layer, "experts.gate_up_proj", 0, 1, 64,
                  "experts.switch_glu.gate_proj.weight");
        cut_stack(&f, layer, "experts.gate_up_proj", 64, 1, 64,
                  "experts.switch_glu.up_proj.weight");
        cut_stack(&f, layer, "experts.down_proj", 0, 1, 128, "experts.switch_glu.down_proj.weight");
        name_of(name, layer, "experts.gate_up_proj");
        form_remove(&f, name);
        name_of(name, layer, "experts.down_proj");
        form_remove(&f, name);
    }
    wrap(&f, "Gemma4ForConditionalGeneration", &MLX);
    check_same(&f, "gemma4_full", 0, "mlx's experts.switch_glu");
    assert_int_equal(failed, 0);
}

/* ---- mlx's other layouts --------------------------------------------------------------------- */

static void test_mlx_turns(void **state) {
    (void)state;
    failed = 0;
    struct form f = fixture_form("lfm2");
    form_turn_convolutions(&f);
    check_same(&f, "lfm2", 0, "mlx's convolutions");
    f = fixture_form("qwen3_next");
    form_turn_convolutions(&f);
    form_gains_whole(&f, false);
    stack_all(&f, "mlp.switch_mlp");
    check_same(&f, "qwen3_next", 0, "as mlx-lm has it: convolutions, gains, experts");
    f = fixture_form("qwen3_5");
    form_turn_convolutions(&f);
    form_gains_whole(&f, false);
    wrap(&f, "Qwen3_5ForConditionalGeneration", &MLX);
    check_same(&f, "qwen3_5", 0, "as mlx-lm has it: convolutions, gains, names");
    f = fixture_form("qwen3_5_moe");
    form_turn_convolutions(&f);
    form_gains_whole(&f, false);
    stack_all(&f, "mlp.switch_mlp");
    wrap(&f, "Qwen3_5MoeForConditionalGeneration", &MLX);
    check_same(&f, "qwen3_5_moe", 0, "as mlx-lm has it: convolutions, gains, experts, names");
    assert_int_equal(failed, 0);
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* A matrix (or stack of them) X.weight as U32 codes with scales and biases; in `values` as the
 * values that the codes stand for. */
static void quantize_affine4(struct form *codes, struct form *values, const char *module,
                             uint32_t group) {
    char name[192];
    size_t n;
    snprintf(name, sizeof name, "%s.weight", module);
    const struct form_tensor *t = form_find(codes, name);
    float *x = form_floats(t, &n);
    uint64_t dims[FORM_DIMS_MAX + 1] = {0}, packed[FORM_DIMS_MAX + 1] = {0};
    memcpy(dims, t->dims, t->n_dims * sizeof *dims);
    memcpy(packed, dims, sizeof packed);
    const uint32_t last = t->n_dims - 1;
    form_remove(codes, name);
    packed[last] = dims[last] / 8;
    uint8_t *words = form_add(codes, name, "U32", packed)->data;
    packed[last] = dims[last] / group;
    snprintf(name, sizeof name, "%s.scales", module);
    uint8_t *scales = form_add(codes, name, "BF16", packed)->data;
    snprintf(name, sizeof name, "%s.biases", module);
    uint8_t *biases = form_add(codes, name, "BF16", packed)->data;
    for (size_t i = 0; i < n; i += group) {
        uint32_t w[16];
        uint16_t scale, bias;
        form_affine4_group(x + i, group, w, &scale, &bias);
        memcpy(words + i / 2, w, group / 2);
        memcpy(scales + i / group * 2, &scale, 2);
        memcpy(biases + i / group * 2, &bias, 2);
    }
    snprintf(name, sizeof name, "%s.weight", module);
    form_set_floats(values, name, dims, x);
    free(x);
}

/* All matrices that mlx-lm quantizes: Linear, Embedding and SwitchLinear whose k the group
 * divides. */
static void quantize_all(struct form *codes, struct form *values, uint32_t group) {
    char(*modules)[160] = calloc(codes->n, sizeof *modules);
    size_t n = 0;
    for (size_t i = 0; i < codes->n; i++) {
        const struct form_tensor *t = &codes->list[i];
        if (t->n_dims >= 2 && form_ends_in(t->name, ".weight") && !strstr(t->name, "conv") &&
            t->dims[t->n_dims - 1] % group == 0)
            snprintf(modules[n++], sizeof *modules, "%.*s", (int)strlen(t->name) - 7, t->name);
    }
    for (size_t i = 0; i < n; i++)
        quantize_affine4(codes, values, modules[i], group);
    free(modules);
    json_object_set_new(codes->config, "quantization",
                        json_pack("{s:i,s:i}", "group_size", (int)group, "bits", 4));
}

static void test_affine(void **state) {
    (void)state;
    failed = 0;
    static const struct {
        const char *fixture;
        bool experts;
    } models[] = {{"llama", false},      {"phi3_long", false}, {"granite", false},
                  {"gemma2", false},     {"gemma3", false},    {"gemma4_shared", false},
                  {"olmo3", false},      {"lfm2", false},      {"qwen3_5", false},
                  {"qwen3_moe", true},   {"qwen3_next", true}, {"qwen3_5_moe", true},
                  {"gemma4_full", false}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (uint32_t group = 32; group <= 64; group *= 2) {
            struct form codes = fixture_form(models[i].fixture),
                        values = fixture_form(models[i].fixture);
            char what[64];
            if (models[i].experts) {
                stack_all(&codes, "mlp.switch_mlp");
                stack_all(&values, "mlp.switch_mlp");
            }
            quantize_all(&codes, &values, group);
            snprintf(what, sizeof what, "mlx's 4 bits in groups of %u%s", group,
                     models[i].experts ? ", stacks of experts" : "");
            check_codes(&codes, &values, models[i].fixture, what);
        }
    assert_int_equal(failed, 0);
}

/* ---- gpt-oss --------------------------------------------------------------------------------- */

/* Experts [experts][k][n] in MXFP4 along k: blocks [experts][n][k/32][16], scales
 * [experts][n][k/32]; in `values` the values they stand for, in float32 and in the fixture's
 * form. */
static void round_to_mxfp4(struct form *codes, struct form *values, const char *name) {
    char part[192];
    size_t all;
    const struct form_tensor *t = form_find(codes, name);
    float *x = form_floats(t, &all);
    const uint64_t experts = t->dims[0], k = t->dims[1], n = t->dims[2];
    form_remove(codes, name);
    snprintf(part, sizeof part, "%s_blocks", name);
    uint8_t *blocks = form_add(codes, part, "U8", (uint64_t[]){experts, n, k / 32, 16, 0})->data;
    snprintf(part, sizeof part, "%s_scales", name);
    uint8_t *scales = form_add(codes, part, "U8", (uint64_t[]){experts, n, k / 32, 0})->data;
    for (uint64_t e = 0; e < experts; e++)
        for (uint64_t row = 0; row < n; row++)
            for (uint64_t i = 0; i < k; i += 32, blocks += 16, scales++) {
                float block[32];
                for (uint64_t j = 0; j < 32; j++)
                    block[j] = x[(e * k + i + j) * n + row];
                form_mxfp4_block(block, blocks, scales);
                for (uint64_t j = 0; j < 32; j++)
                    x[(e * k + i + j) * n + row] = block[j];
            }
    form_set_floats(values, name, (uint64_t[]){experts, k, n, 0}, x);
    free(x);
}

static void mxfp4_forms(struct form *codes, struct form *values) {
    *codes = fixture_form("gpt_oss");
    *values = fixture_form("gpt_oss");
    for (int layer = 0; layer < LAYERS; layer++) {
        char name[160];
        name_of(name, layer, "mlp.experts.gate_up_proj");
        round_to_mxfp4(codes, values, name);
        name_of(name, layer, "mlp.experts.down_proj");
        round_to_mxfp4(codes, values, name);
    }
    form_configure(codes, "{'quantization_config':{'quant_method':'mxfp4',"
                          "'modules_to_not_convert':['model.layers.*.self_attn','lm_head']}}");
}

/* As sanitize() of mlx-lm does: words of 8 codes, gate and up separated. */
static void to_mlx_gpt_oss(struct form *f, bool quantized_rest) {
    static const struct {
        const char *from, *part, *to;
        uint64_t first, step, n;
    } cuts[] = {
        {"gate_up_proj_blocks", "weight", "gate_proj", 0, 2, 256},
        {"gate_up_proj_blocks", "weight", "up_proj", 1, 2, 256},
        {"gate_up_proj_scales", "scales", "gate_proj", 0, 2, 256},
        {"gate_up_proj_scales", "scales", "up_proj", 1, 2, 256},
        {"gate_up_proj_bias", "bias", "gate_proj", 0, 2, 256},
        {"gate_up_proj_bias", "bias", "up_proj", 1, 2, 256},
        {"down_proj_blocks", "weight", "down_proj", 0, 1, 128},
        {"down_proj_scales", "scales", "down_proj", 0, 1, 128},
        {"down_proj_bias", "bias", "down_proj", 0, 1, 128},
    };
    for (int layer = 0; layer < LAYERS; layer++) {
        char from[96], to[96], name[160];
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            snprintf(from, sizeof from, "mlp.experts.%s", cuts[i].from);
            snprintf(to, sizeof to, "mlp.experts.%s.%s", cuts[i].to, cuts[i].part);
            name_of(name, layer, from);
            struct form_tensor *t = form_find(f, name);
            if (t->n_dims == 4) { /* blocks of 16 bytes to words of 4 */
                t->dims[2] *= 4;
                t->n_dims = 3;
                strcpy(t->dtype, "U32");
            }
            cut_stack(f, layer, from, cuts[i].first, cuts[i].step, cuts[i].n, to);
            if (cuts[i].step == 1 || cuts[i].first == 1)
                form_remove(f, name);
        }
    }
    form_configure(f, "{'quantization_config':null}");
    form_configure(f, quantized_rest ? "{'quantization':{'group_size':32,'bits':4,'mode':'mxfp4'}}"
                                     : "{'quantization':{'group_size':32,'bits':4,'mode':'mxfp4',"
                                       "'model.layers.0.self_attn.q_proj':false}}");
}

static void quantize_attention(struct form *codes, struct form *values) {
    json_t *q = json_object_get(codes->config, "quantization");
    for (int layer = 0; layer < LAYERS; layer++) {
        static const char *const parts[] = {"self_attn.q_proj", "self_attn.k_proj",
                                            "self_attn.v_proj", "self_attn.o_proj", "mlp.router"};
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            char name[160];
            name_of(name, layer, parts[i]);
            quantize_affine4(codes, values, name, 64);
            json_object_set_new(
                q, name, json_pack("{s:s,s:i,s:i}", "mode", "affine", "group_size", 64, "bits", 4));
        }
    }
}

static void test_gpt_oss(void **state) {
    (void)state;
    failed = 0;
    struct form codes, values;
    struct form f = fixture_form("gpt_oss");
    for (int layer = 0; layer < LAYERS; layer++) {
        char name[160];
        static const char *const parts[] = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
        for (int i = 0; i < 2; i++) {
            name_of(name, layer, parts[i]);
            const struct form_tensor *t = form_find(&f, name);
            uint64_t dims[] = {t->dims[0], t->dims[1], t->dims[2], 0};
            size_t n;
            float *x = form_floats(t, &n);
            form_set_floats(&f, name, dims, x);
            free(x);
        }
    }
    form_write(&f, folder);
    form_free(&f);
    struct logits wide = run(folder, "gpt_oss", 0);
    assert_non_null(wide.values);
    judge("gpt_oss", "experts in float32", off_golden(&wide, "gpt_oss"), BOUND, "the golden");
    free(wide.values);

    mxfp4_forms(&codes, &values);
    check_codes(&codes, &values, "gpt_oss", "MXFP4 as OpenAI has it: blocks and scales");
    mxfp4_forms(&codes, &values);
    to_mlx_gpt_oss(&codes, false);
    check_codes(&codes, &values, "gpt_oss", "mlx's MXFP4: gate_proj, up_proj, down_proj");
    mxfp4_forms(&codes, &values);
    to_mlx_gpt_oss(&codes, true);
    quantize_attention(&codes, &values);
    check_codes(&codes, &values, "gpt_oss", "mlx's MXFP4, attention in 4 bits of 64");
    assert_int_equal(failed, 0);
}

int main(void) {
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    snprintf(folder, sizeof folder, "/tmp/kvasir-forms-XXXXXX");
    if (!mkdtemp(folder))
        abort();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spelling), cmocka_unit_test(test_wrappers),
        cmocka_unit_test(test_experts),  cmocka_unit_test(test_mlx_turns),
        cmocka_unit_test(test_affine),   cmocka_unit_test(test_gpt_oss),
    };
    int result = cmocka_run_group_tests(tests, NULL, NULL);
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    rmdir(folder);
    return result;
}
