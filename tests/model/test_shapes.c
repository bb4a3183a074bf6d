#include <math.h>
#include <string.h>

#include "common/half.h"
#include "forward_case.h"
#include "model/checkpoint/family.h"
#include "model/checkpoint/random.h"
#include "model/checkpoint/shapes.h"
#include "model/checkpoint/weights.h"

/* sizes of published models, with numbers of weights as Transformers counts them
 * (make_family_fixtures.py --count) */
static const struct {
    const char *name;
    int layers, heads, kv_heads, d_head, d_model, d_ffn;
    size_t elements;
} published[] = {
    {"llama-3.1-8b", 32, 32, 8, 128, 4096, 14336, 8030261248},
    {"llama-3.1-70b", 80, 64, 8, 128, 8192, 28672, 70553706496},
    {"llama-2-7b", 32, 32, 32, 128, 4096, 11008, 6738415616},
    {"llama-2-13b", 40, 40, 40, 128, 5120, 13824, 13015864320},
    {"llama-2-70b", 80, 64, 8, 128, 8192, 28672, 68976648192},
    {"yi-34b", 60, 56, 8, 128, 7168, 20480, 34388917248},
    {"mistral-7b", 32, 32, 8, 128, 4096, 14336, 7248023552},
    {"phi-3-14b", 40, 40, 10, 128, 5120, 17920, 13960238080},
    {"qwen-2.5-7b", 28, 28, 4, 128, 3584, 18944, 7615616512},
    {"qwen-3-8b", 36, 32, 8, 128, 4096, 12288, 8190735360},
    {"qwen-3-30b-a3b", 48, 32, 4, 128, 2048, 6144, 30532122624},
    {"mixtral-8x7b", 32, 32, 8, 128, 4096, 14336, 46702792704},
    {"gpt-oss-20b", 24, 64, 8, 64, 2880, 2880, 20914757184},
    {"gemma-3-12b", 48, 16, 8, 256, 3840, 15360, 11766034176},
    {"opt-13b", 40, 40, 40, 128, 5120, 20480, 12853473280},
    {"opt-66b", 64, 72, 72, 128, 9216, 36864, 65719701504},
    {"falcon-7b", 32, 71, 1, 64, 4544, 18176, 6921720704},
    {"falcon-40b", 60, 128, 8, 64, 8192, 32768, 41303293952},
    {"falcon-180b", 80, 232, 8, 64, 14848, 59392, 178557088768},
};
enum { N_PUBLISHED = sizeof published / sizeof published[0] };

TEST(test_table)
{
    assert_int_equal(kvd_shape_count(), N_PUBLISHED);
    for (size_t i = 0; i < N_PUBLISHED; i++) {
        kvd_err err = {""};
        kvd_config c;
        const kvd_shape *s = kvd_shape_find(published[i].name, &err);
        assert_non_null(s);
        assert_ptr_equal(s, kvd_shape_at(i));
        assert_true(s->title[0] && s->source[0]);
        OK(kvd_config_parse(s->name, s->json, strlen(s->json), &c, &err));
        const int got[6] = {c.n_layers, c.n_heads, c.n_kv_heads, c.d_head, c.d_model, c.d_ffn};
        const int want[6] = {published[i].layers, published[i].heads,   published[i].kv_heads,
                             published[i].d_head, published[i].d_model, published[i].d_ffn};
        assert_memory_equal(got, want, sizeof want);
        if (kvd_family_elements(&c) != published[i].elements)
            fail_msg("%s has %zu elements, not %zu", s->name, kvd_family_elements(&c),
                     published[i].elements);
    }
}

TEST(test_unknown)
{
    kvd_err err = {""};
    assert_null(kvd_shape_find("llama-9", &err));
    SAYS("no shape 'llama-9': there are llama-3.1-8b, llama-3.1-70b, ");
    SAYS(", falcon-180b");
}

/* Compares with published test vectors of Random123 for philox4x32 with 10 rounds. */
TEST(test_philox)
{
    static const struct {
        uint64_t key;
        uint32_t counter[4], words[4];
    } known[] = {
        {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX,
         {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t x[4];
        memcpy(x, known[i].counter, sizeof x);
        kvd_philox(known[i].key, x);
        assert_memory_equal(x, known[i].words, sizeof x);
    }
}

/* Returns element i of a random tensor, computed from its definition. It is a sum of four 16-bit
 * random numbers, centred at 0 and scaled. */
static float element_by_definition(const kvd_random_tensor *t, uint64_t i)
{
    uint32_t x[4] = {(uint32_t)(i / 2), (uint32_t)(i / 2 >> 32), 0, 0}, bits;
    kvd_philox(t->key, x);
    const uint32_t *w = x + i % 2 * 2;
    const double sum = (w[0] & 0xffff) + (double)(w[0] >> 16) + (w[1] & 0xffff) + (w[1] >> 16);
    const float product = (float)((sum - 131070) * (double)kvd_random_unit(t->scale));
    uint16_t half;
    kvd_from_f32(KVD_BF16, &product, &half, 1);
    bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

TEST(test_any_piece)
{
    enum { N = 1000 };
    const kvd_random_tensor t = kvd_random_tensor_of(7, "model.embed_tokens.weight", 0.0156f, 0);
    static const size_t begin[] = {0, 1, 123457, ((size_t)1 << 33) - 301, ((size_t)1 << 36) + 1};
    float whole[N], piece[N], want[N];
    for (size_t b = 0; b < sizeof begin / sizeof begin[0]; b++) {
        kvd_random_read(&t, begin[b], N, whole);
        for (size_t i = 0; i < N; i++)
            want[i] = element_by_definition(&t, begin[b] + i);
        assert_memory_equal(whole, want, sizeof want);
        for (size_t i = 0, n = 0; i < N; i += n) {
            n = (i * 7 + 1) % 23 < N - i ? (i * 7 + 1) % 23 : N - i;
            n = n ? n : 1;
            kvd_random_read(&t, begin[b] + i, n, piece + i);
        }
        assert_memory_equal(whole, piece, sizeof piece);
    }
    const kvd_random_tensor gain = kvd_random_tensor_of(7, "model.norm.weight", 0, 1);
    kvd_random_read(&gain, 3, N, whole);
    for (size_t i = 0; i < N; i++)
        assert_true(whole[i] == 1);
}

TEST(test_moments)
{
    enum { N = 1 << 20 };
    float *x[3];
    const kvd_random_tensor t[3] = {kvd_random_tensor_of(1, "a", 1, 0),
                                    kvd_random_tensor_of(1, "b", 1, 0),
                                    kvd_random_tensor_of(2, "a", 1, 0)};
    for (int k = 0; k < 3; k++) {
        x[k] = unit_alloc(N * sizeof **x);
        kvd_random_read(&t[k], 0, N, x[k]);
    }
    const double deviation = 1 / sqrt(N);
    for (int k = 0; k < 3; k++) {
        double sum = 0, square = 0, fourth = 0, neighbour = 0, other = 0, top = 0;
        for (size_t i = 0; i < N; i++) {
            const double v = (double)x[k][i], s = v * v;
            sum += v;
            square += s;
            fourth += s * s;
            neighbour += v * (double)x[k][(i + 1) % N];
            other += v * (double)x[(k + 1) % 3][i];
            top = fmax(top, fabs(v));
        }
        assert_true(fabs(sum / N) < 5 * deviation);
        /* The elements have fourth moment 2.7, so their squares have standard deviation sqrt(1.7) =
         * 1.31. */
        assert_true(fabs(square / N - 1) < 5 * 1.31 * deviation);
        assert_true(fabs(fourth / N - 2.7) < 5 * 6 * deviation);
        assert_true(fabs(neighbour / N) < 5 * deviation);
        assert_true(fabs(other / N) < 5 * deviation);
        assert_true(top > 3 && top < 3.48);
    }
}

/* shapes of models with many narrow layers */
static const kvd_shape deep[] = {
    {"llama", "", "",
     "{\"model_type\":\"llama\",\"num_hidden_layers\":80,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
     "\"hidden_size\":128,\"intermediate_size\":320,\"vocab_size\":500,\"max_position_embeddings\":64,"
     "\"rms_norm_eps\":1e-05,\"tie_word_embeddings\":false}"},
    {"mistral", "", "",
     "{\"model_type\":\"mistral\",\"num_hidden_layers\":80,\"num_attention_heads\":8,"
     "\"num_key_value_heads\":2,\"hidden_size\":128,\"intermediate_size\":320,\"vocab_size\":500,"
     "\"max_position_embeddings\":64,\"sliding_window\":null,\"rms_norm_eps\":1e-05}"},
    {"qwen2", "", "",
     "{\"model_type\":\"qwen2\",\"num_hidden_layers\":80,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
     "\"hidden_size\":128,\"intermediate_size\":320,\"vocab_size\":500,\"max_position_embeddings\":64,"
     "\"rms_norm_eps\":1e-06,\"tie_word_embeddings\":true}"},
    {"qwen3", "", "",
     "{\"model_type\":\"qwen3\",\"num_hidden_layers\":80,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
     "\"head_dim\":32,\"hidden_size\":128,\"intermediate_size\":320,\"vocab_size\":500,"
     "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-06}"},
    {"phi3", "", "",
     "{\"model_type\":\"phi3\",\"num_hidden_layers\":80,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
     "\"hidden_size\":128,\"intermediate_size\":320,\"vocab_size\":500,\"max_position_embeddings\":64,"
     "\"sliding_window\":16,\"rms_norm_eps\":1e-05}"},
    {"opt", "", "",
     "{\"model_type\":\"opt\",\"num_hidden_layers\":80,\"num_attention_heads\":8,\"hidden_size\":128,"
     "\"ffn_dim\":512,\"vocab_size\":500,\"max_position_embeddings\":64,\"word_embed_proj_dim\":128}"},
    {"opt-narrow", "", "",
     "{\"model_type\":\"opt\",\"num_hidden_layers\":80,\"num_attention_heads\":8,\"hidden_size\":128,"
     "\"ffn_dim\":512,\"vocab_size\":500,\"max_position_embeddings\":64,\"word_embed_proj_dim\":64,"
     "\"do_layer_norm_before\":false}"},
    {"falcon-one", "", "",
     "{\"model_type\":\"falcon\",\"num_hidden_layers\":80,\"num_attention_heads\":8,\"hidden_size\":128,"
     "\"vocab_size\":500,\"max_position_embeddings\":64,\"layer_norm_epsilon\":1e-05,\"multi_query\":true,"
     "\"parallel_attn\":true,\"new_decoder_architecture\":false}"},
    {"falcon-grouped", "", "",
     "{\"model_type\":\"falcon\",\"num_hidden_layers\":80,\"num_attention_heads\":8,\"num_kv_heads\":2,"
     "\"hidden_size\":128,\"vocab_size\":500,\"max_position_embeddings\":64,\"layer_norm_epsilon\":1e-05,"
     "\"parallel_attn\":true,\"new_decoder_architecture\":true}"},
};
enum { N_DEEP = sizeof deep / sizeof deep[0] };

static kvd_checkpoint *open_shape(const kvd_shape *s, uint64_t seed)
{
    kvd_err err = {""};
    kvd_checkpoint *c = kvd_checkpoint_of_shape(s, seed, &err);
    if (!c)
        fail_msg("%s: %s", s->name, err.msg);
    unit_at_end(end_checkpoint, c);
    return c;
}

TEST(test_parts)
{
    for (size_t i = 0; i < N_DEEP; i++) {
        kvd_checkpoint *c = open_shape(&deep[i], 3);
        const kvd_config *config = kvd_checkpoint_config(c);
        assert_string_equal(kvd_checkpoint_dtype(c), "random");
        assert_memory_equal(kvd_checkpoint_path(c), "shape:", 6);
        for (int p = 0; p < KVD_N_PARTS; p++)
            for (int bias = 0; bias < 2; bias++) {
                kvd_err err = {""};
                kvd_weight w;
                kvd_place place;
                if (kvd_weight_find(c, (kvd_part)p, bias, 79, &w, &err))
                    fail_msg("%s, part %d: %s", deep[i].name, p, err.msg);
                if (!kvd_part_place(config, (kvd_part)p, bias, 79, &place)) {
                    assert_int_equal(w.n, 0);
                    continue;
                }
                assert_int_equal(w.n, place.rows * (place.cols ? place.cols : 1));
                assert_int_equal(w.tensor.packing, KVD_RANDOM);
                assert_null(w.tensor.data);
                assert_null(kvd_weight_in_place(&w));
                assert_string_equal(kvd_tensor_type_name(&w.tensor), "random");
                float part[2], want[2];
                const size_t row = place.rows - 1;
                kvd_weight_read(&w, row * w.cols, w.cols < 2 ? 1 : 2, part);
                kvd_tensor_read(
                    &w.tensor,
                    (place.first + row / place.block * place.stride + row % place.block) * w.cols,
                    w.cols < 2 ? 1 : 2, want);
                assert_memory_equal(part, want, (w.cols < 2 ? 1 : 2) * sizeof *want);
                if (place.cols == 0)
                    assert_true(part[0] == (bias ? 0 : 1));
                else
                    assert_true(fabs((double)w.tensor.random.scale * sqrt((double)place.cols) - 1) <
                                1e-6);
            }
    }
}

TEST(test_names)
{
    kvd_err err = {""};
    kvd_tensor t, u;
    kvd_checkpoint *c = open_shape(&deep[0], 1), *tied = open_shape(&deep[2], 1);
    OK(kvd_checkpoint_tensor(c, "model.layers.79.self_attn.q_proj.weight", 128, 128, &t, &err));
    OK(kvd_checkpoint_tensor(c, "lm_head.weight", 500, 128, &t, &err));
    static const char *const missing[] = {"model.layers.80.self_attn.q_proj.weight",
                                          "model.layers.0.self_attn.q_proj.bias",
                                          "model.layers.0.self_attn.rotary_emb.inv_freq"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(kvd_checkpoint_tensor(c, missing[i], 4, 128, &t, &err), -1);
        SAYS("is missing");
    }
    assert_int_equal(
        kvd_checkpoint_tensor(c, "model.layers.0.self_attn.q_proj.weight", 4, 128, &t, &err), -1);
    assert_string_equal(err.msg,
                        "'shape:llama': tensor 'model.layers.0.self_attn.q_proj.weight' has shape "
                        "[128][128], the configuration needs [4][128]");
    FAILS(kvd_checkpoint_tensor(c, "nothing", 4, 128, &t, &err),
          "'shape:llama': tensor 'nothing' is missing");
    assert_null(kvd_checkpoint_tokenizer_path(c, &err));
    assert_string_equal(err.msg,
                        "no tokenizer for 'shape:llama': random weights go with token ids");

    OK(kvd_checkpoint_tensor(tied, "model.embed_tokens.weight", 500, 128, &t, &err));
    OK(kvd_checkpoint_tensor(tied, "lm_head.weight", 500, 128, &u, &err));
    assert_true(t.random.key == u.random.key);
}

TEST(test_identity)
{
    kvd_err err = {""};
    kvd_common_options common = {.seed = 1, .threads = 1};
    char *argv[] = {(char *)(uintptr_t) "test_shapes", NULL};
    kvd_run run;
    OK(kvd_run_start(&run, "test_shapes", 1, argv, &common, &err));
    static const struct {
        const kvd_shape *shape;
        uint64_t seed;
    } made[4] = {{&deep[0], 1}, {&deep[0], 1}, {&deep[0], 2}, {&deep[1], 1}};
    for (int i = 0; i < 4; i++) {
        kvd_checkpoint *c = open_shape(made[i].shape, made[i].seed);
        OK(kvd_checkpoint_add_input(c, &run, &err));
    }
    assert_int_equal(run.n_inputs, 4);
    assert_string_equal(run.inputs[0].path, "shape:llama");
    assert_memory_equal(run.inputs[0].hash, "xxh3:", 5);
    assert_int_equal(run.inputs[0].bytes, 0);
    assert_string_equal(run.inputs[0].schema, "");
    assert_string_equal(run.inputs[0].hash, run.inputs[1].hash);
    assert_string_not_equal(run.inputs[0].hash, run.inputs[2].hash);
    assert_string_not_equal(run.inputs[0].hash, run.inputs[3].hash);
    kvd_run_release(&run);
}

typedef struct {
    double qk, v; /* largest |x| over all layers of Q and K, and of V */
} extremes;

static int watch(void *ctx, const kvd_attention_in *in, kvd_err *err)
{
    extremes *e = ctx;
    const size_t d = (size_t)in->config->d_head;
    (void)err;
    for (size_t i = 0; i < in->n_tokens * (size_t)in->config->n_heads * d; i++)
        e->qk = fmax(e->qk, fabs((double)in->q[i]));
    for (size_t i = 0; i < in->n_tokens * (size_t)in->config->n_kv_heads * d; i++) {
        e->qk = fmax(e->qk, fabs((double)in->k[i]));
        e->v = fmax(e->v, fabs((double)in->v[i]));
    }
    return 0;
}

TEST(test_depth)
{
    enum { N = 64 };
    uint32_t id[N];
    for (uint32_t i = 0; i < N; i++)
        id[i] = i * 7919 % 500;
    const size_t offset[2] = {0, N};
    for (size_t i = 0; i < N_DEEP; i++) {
        kvd_err err = {""};
        kvd_checkpoint *c = open_shape(&deep[i], 1);
        kvd_forward *f = open_forward(c, N, N);
        const kvd_batch batch = {.n_sequences = 1, .offset = offset, .id = id};
        float residual[N * 128], hidden[N * 128], logits[500];
        kvd_capture capture;
        extremes e = {0, 0};
        kvd_capture_init(&capture, &dense_attention()->hook);
        capture.record = watch;
        capture.ctx = &e;
        if (kvd_forward_residual(f, &batch, &capture.hook, 79, residual, &err) ||
            kvd_forward_run(f, &batch, &capture.hook, -1, hidden, &err) ||
            kvd_forward_logits(f, hidden, 1, logits, &err))
            fail_msg("%s: %s", deep[i].name, err.msg);
        double square = 0, top = 0;
        for (size_t k = 0; k < N * 128; k++) {
            square += (double)residual[k] * (double)residual[k];
            top = fmax(top, fabs((double)residual[k]));
        }
        const double rms = sqrt(square / (N * 128));
        if (!(rms > 0.3 && rms < sqrt(160) && top < 100 && e.qk > 0.5 && e.qk < 30 && e.v > 0.5 &&
              e.v < 30))
            fail_msg("%s: behind 79 layers x has rms %g, at most %g; Q and K at most %g, V %g",
                     deep[i].name, rms, top, e.qk, e.v);
    }
}

TEST_MAIN(NULL, NULL)
