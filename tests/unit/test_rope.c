/* SPDX-License-Identifier: Apache-2.0 */
/* The frequencies of every kind of rope, computed from a configuration's text, against those of
 * modeling_rope_utils.py of transformers 5.17 (its own code, run in double precision). If --ctx
 * decides, on both sides of the original context.
 */
#include <math.h>

#include "model_files.h"

#define SHORT "[1,1.01,1.02,1.03,1.04,1.05,1.06,1.07]"
#define LONG  "[1,1.3,1.6,1.9,2.2,2.5,2.8,3.1]"

enum { PAIRS = 8 };

static const struct {
    const char *what;
    uint32_t head_dim, trained, ctx; /* ctx 0: the trained one */
    const char *rope;
    double scale, inv_freq[PAIRS];
} CASES[] = {
    {"linear",
     16,
     4096,
     0,
     "{'rope_theta':10000.0,'factor':4.0,'rope_type':'linear'}",
     1,
     {0.25, 0.0790569415042095, 0.025, 0.00790569415042095, 0.0025, 0.000790569415042095, 0.00025,
      7.90569415042095e-05}},
    {"linear, half of a head",
     32,
     4096,
     0,
     "{'rope_theta':1000000.0,'factor':8.0,'partial_rotary_factor':0.5,"
     "'rope_type':'linear'}",
     1,
     {0.125, 0.0222284926254865, 0.00395284707521047, 0.000702926656487936, 0.000125,
      2.22284926254865e-05, 3.95284707521047e-06, 7.02926656487936e-07}},
    {"dynamic within",
     16,
     2048,
     1000,
     "{'rope_theta':10000.0,'factor':2.0,'rope_type':'dynamic'}",
     1,
     {1, 0.316227766016838, 0.1, 0.0316227766016838, 0.01, 0.00316227766016838, 0.001,
      0.000316227766016838}},
    {"dynamic at",
     16,
     2048,
     2048,
     "{'rope_theta':10000.0,'factor':2.0,'rope_type':'dynamic'}",
     1,
     {1, 0.316227766016838, 0.1, 0.0316227766016838, 0.01, 0.00316227766016838, 0.001,
      0.000316227766016838}},
    {"dynamic past",
     16,
     2048,
     2049,
     "{'rope_theta':10000.0,'factor':2.0,'rope_type':'dynamic'}",
     1,
     {1, 0.316183674021494, 0.0999721157177301, 0.0316095508473338, 0.00999442392107922,
      0.00316007367509513, 0.000999163704770182, 0.000315919251123163}},
    {"dynamic far past",
     16,
     2048,
     16384,
     "{'rope_theta':10000.0,'factor':4.0,'rope_type':'dynamic'}",
     1,
     {1, 0.195472649827566, 0.0382095568306101, 0.00746892332241633, 0.00145997023319163,
      0.000285384250151336, 5.57848155961346e-05, 1.09044057247186e-05}},
    {"dynamic, half",
     32,
     2048,
     8192,
     "{'rope_theta':500000.0,'factor':4.0,'partial_rotary_factor':0.5,"
     "'rope_type':'dynamic'}",
     1,
     {1, 0.134429314752916, 0.0180712406649386, 0.00242930449932273, 0.000326569739170131,
      4.39005462556793e-05, 5.90152035042967e-06, 7.93337336708651e-07}},
    {"llama3",
     16,
     131072,
     0,
     "{'rope_theta':500000.0,'factor':8.0,'low_freq_factor':1.0,"
     "'high_freq_factor':4.0,'original_max_position_embeddings':8192,"
     "'rope_type':'llama3'}",
     1,
     {1, 0.193922744748686, 0.0376060309308639, 0.00729266473721711, 0.000524846160992955,
      3.42810219595259e-05, 6.64786987118124e-06, 1.28917317215156e-06}},
    {"llama3 short",
     16,
     4096,
     0,
     "{'rope_theta':10000.0,'factor':32.0,'low_freq_factor':1.0,"
     "'high_freq_factor':4.0,'original_max_position_embeddings':128,"
     "'rope_type':'llama3'}",
     1,
     {1, 0.316227766016838, 0.0366173764779834, 0.000988211768802618, 0.0003125,
      9.88211768802618e-05, 3.125e-05, 9.88211768802619e-06}},
    {"yarn",
     16,
     4096,
     0,
     "{'rope_theta':1000000.0,'factor':4.0,'original_max_position_embeddings':128,"
     "'rope_type':'yarn'}",
     1.13862943611199,
     {1, 0.111142463127433, 0.00790569415042095, 0.00140585331297587, 0.00025, 4.44569852509731e-05,
      7.90569415042095e-06, 1.40585331297587e-06}},
    {"yarn, gpt-oss",
     16,
     131072,
     0,
     "{'rope_theta':150000.0,'factor':32.0,'beta_fast':32.0,'beta_slow':1.0,"
     "'truncate':false,'original_max_position_embeddings':4096,'rope_type':'yarn'}",
     1.34657359027997,
     {1, 0.225418000202871, 0.0508132748154615, 0.00679495948973222, 0.000456483919223241,
      1.81883366816896e-05, 4.09997848180298e-06, 9.2420895024283e-07}},
    {"yarn, mscales",
     16,
     4096,
     0,
     "{'rope_theta':10000.0,'factor':40.0,'mscale':0.7,'mscale_all_dim':1.1,"
     "'beta_fast':16.0,'beta_slow':2.0,'original_max_position_embeddings':4096,"
     "'rope_type':'yarn'}",
     0.895036548855162,
     {1, 0.316227766016838, 0.1, 0.0316227766016838, 0.00675, 0.00110679718105893, 2.5e-05,
      7.90569415042095e-06}},
    {"yarn, factor of attention",
     16,
     65536,
     0,
     "{'rope_theta':500000.0,'factor':8.0,'attention_factor':1.2079441541679836,"
     "'original_max_position_embeddings':8192,'rope_type':'yarn'}",
     1.20794415416798,
     {1, 0.193922744748686, 0.0376060309308639, 0.00516563752219545, 0.00058925565098879,
      3.42810219595259e-05, 6.64786987118124e-06, 1.28917317215156e-06}},
    {"longrope within",
     16,
     131072,
     4096,
     "{'rope_theta':10000.0,'short_factor':" SHORT ",'long_factor':" LONG
     ",'original_max_position_embeddings':4096,'rope_type':'longrope'}",
     1.19023807142381,
     {1, 0.313096798036473, 0.0980392156862745, 0.0307017248560037, 0.00961538461538462,
      0.00301169300968417, 0.000943396226415094, 0.000295539968240035}},
    {"longrope past",
     16,
     131072,
     4097,
     "{'rope_theta':10000.0,'short_factor':" SHORT ",'long_factor':" LONG
     ",'original_max_position_embeddings':4096,'rope_type':'longrope'}",
     1.19023807142381,
     {1, 0.24325212770526, 0.0625, 0.0166435666324652, 0.00454545454545455, 0.00126491106406735,
      0.000357142857142857, 0.000102008956779625}},
    {"longrope, factor",
     16,
     131072,
     100,
     "{'rope_theta':10000.0,'short_factor':" SHORT ",'long_factor':" LONG
     ",'factor':4.0,'original_max_position_embeddings':4096,"
     "'rope_type':'longrope'}",
     1.08012344973464,
     {1, 0.313096798036473, 0.0980392156862745, 0.0307017248560037, 0.00961538461538462,
      0.00301169300968417, 0.000943396226415094, 0.000295539968240035}},
    {"longrope, factor of attention",
     16,
     131072,
     131072,
     "{'rope_theta':10000.0,'short_factor':" SHORT ",'long_factor':" LONG
     ",'attention_factor':1.5,'original_max_position_embeddings':4096,"
     "'rope_type':'longrope'}",
     1.5,
     {1, 0.24325212770526, 0.0625, 0.0166435666324652, 0.00454545454545455, 0.00126491106406735,
      0.000357142857142857, 0.000102008956779625}},
    {"longrope, no longer",
     16,
     4096,
     4096,
     "{'rope_theta':10000.0,'short_factor':" SHORT ",'long_factor':" LONG
     ",'original_max_position_embeddings':4096,'rope_type':'longrope'}",
     1,
     {1, 0.313096798036473, 0.0980392156862745, 0.0307017248560037, 0.00961538461538462,
      0.00301169300968417, 0.000943396226415094, 0.000295539968240035}},
    {"proportional",
     16,
     4096,
     0,
     "{'rope_theta':1000000.0,'partial_rotary_factor':0.25,"
     "'rope_type':'proportional'}",
     1,
     {1, 0.177827941003892, 0, 0, 0, 0, 0, 0}},
    {"proportional, factor",
     16,
     4096,
     0,
     "{'rope_theta':1000000.0,'partial_rotary_factor':0.5,'factor':8.0,"
     "'rope_type':'proportional'}",
     1,
     {0.125, 0.0222284926254865, 0.00395284707521047, 0.000702926656487936, 0, 0, 0, 0}},
};

static struct model_config parsed(uint32_t head_dim, uint32_t trained, const char *rope) {
    char text[1024];
    struct model_config c;
    struct quantization q;
    kvasir_error err = {0};
    int n = snprintf(text, sizeof text,
                     "{'architectures':['LlamaForCausalLM'],'hidden_size':64,"
                     "'intermediate_size':64,'num_hidden_layers':1,'num_attention_heads':4,"
                     "'vocab_size':8,'rms_norm_eps':1e-5,'head_dim':%u,"
                     "'max_position_embeddings':%u,'rope_parameters':%s}",
                     head_dim, trained, rope);
    assert_true(n > 0 && (size_t)n < sizeof text);
    for (int i = 0; i < n; i++)
        if (text[i] == '\'')
            text[i] = '"';
    if (config_parse(text, (size_t)n, &c, &q, &err) != KVASIR_OK)
        fail_msg("%s: %s", rope, err.text);
    quantization_deinit(&q);
    return c;
}

static void assert_near(const char *what, double ours, double right, double bound) {
    if (!(fabs(ours - right) <= bound * fabs(right)))
        fail_msg("%s: %.17g, should be %.17g", what, ours, right);
}

static void test_kinds(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct model_config c = parsed(CASES[i].head_dim, CASES[i].trained, CASES[i].rope);
        double inv_freq[PAIRS];
        assert_int_equal(c.ropes[0].dims, 2 * PAIRS);
        float scale = rope_frequencies(&c.ropes[0], CASES[i].ctx ? CASES[i].ctx : c.ctx_train,
                                       c.ctx_train, NULL, inv_freq);
        assert_near(CASES[i].what, (double)scale, CASES[i].scale, 1e-7);
        for (int p = 0; p < PAIRS; p++) /* longrope's divisors are float32 */
            assert_near(CASES[i].what, inv_freq[p], CASES[i].inv_freq[p], 1e-7);
    }
}

/* GGUF's divisors apply on top of any kind of rope. */
static void test_factors(void **state) {
    (void)state;
    static const float factors[PAIRS] = {1, 2, 4, 8, 1, 2, 4, 8};
    struct model_config c = parsed(16, 4096, "{'rope_theta':10000.0}");
    double plain[PAIRS], divided[PAIRS];
    assert_near("scale", (double)rope_frequencies(&c.ropes[0], 4096, 4096, NULL, plain), 1, 0);
    assert_near("scale", (double)rope_frequencies(&c.ropes[0], 4096, 4096, factors, divided), 1, 0);
    for (int p = 0; p < PAIRS; p++) {
        assert_near("plain", plain[p], pow(10000, -p / 8.0), 1e-12);
        assert_near("divided", divided[p], plain[p] / (double)factors[p], 1e-15);
    }
}

/* Whatever a configuration says, all frequencies stay finite. */
static void test_extremes(void **state) {
    (void)state;
    static const char *const ropes[] = {
        "{'rope_type':'yarn','factor':1e15,'rope_theta':1.0000000001}",
        "{'rope_type':'yarn','factor':1e-15,'beta_fast':1e15,'beta_slow':1e-15}",
        "{'rope_type':'yarn','factor':8,'mscale':1e15,'mscale_all_dim':1e-15}",
        "{'rope_type':'dynamic','factor':1e15,'rope_theta':1e15}",
        "{'rope_type':'dynamic','factor':1e-15,'partial_rotary_factor':0.125}",
        "{'rope_type':'linear','factor':1e-15,'rope_theta':1e-15}",
        "{'rope_type':'llama3','factor':1e-15,'low_freq_factor':1e-15,'high_freq_factor':1e15,"
        "'original_max_position_embeddings':2}",
        "{'rope_type':'proportional','factor':1e15,'partial_rotary_factor':0.125}",
        "{'rope_type':'longrope','original_max_position_embeddings':2,'short_factor':" SHORT
        ",'long_factor':" LONG "}",
    };
    for (size_t i = 0; i < sizeof ropes / sizeof *ropes; i++)
        for (uint32_t trained = 2; trained < CTX_MAX / 8; trained *= 8) {
            struct model_config c = parsed(16, trained, ropes[i]);
            double inv_freq[PAIRS];
            float scale = rope_frequencies(&c.ropes[0], CTX_MAX, trained, NULL, inv_freq);
            bool good = isfinite(scale);
            for (uint32_t p = 0; p < c.ropes[0].dims / 2; p++)
                good = good && isfinite(inv_freq[p]);
            if (!good)
                fail_msg("%s of %u positions: no number", ropes[i], trained);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds), cmocka_unit_test(test_factors),
                                       cmocka_unit_test(test_extremes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
