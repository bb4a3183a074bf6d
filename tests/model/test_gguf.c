/* Tests reading of GGUF files that tests/oracle/make_gguf.py wrote with llama.cpp's package
 * gguf. */
#include <stdio.h>

#include <jansson.h>

#include "forward_case.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/weights.h"
#include "tokenizer_case.h"
#include "unit.h"

#define DATA "tests/data/gguf/"

/* Compares a GGUF model with activations that Transformers computed; *state names the model and a
 * folder. */
static void test_same_as_folder(void **state)
{
    char name[64], folder[64], model[256], expected[256];
    assert_int_equal(sscanf(*state, "%63s %63s", name, folder), 2);
    (void)snprintf(model, sizeof model, DATA "%s.gguf", name);
    (void)snprintf(expected, sizeof expected, "tests/data/%s/%s/expected.safetensors", folder,
                   name);
    worst = 0;
    compare_with_transformers(model, expected);
    print_message("%s: %.2g off Transformers at most\n", name, worst);
}

static void test_transformers_loader(void **state)
{
    const char *name = *state;
    char model[256], expected[256];
    (void)snprintf(model, sizeof model, DATA "llama-%s.gguf", name);
    (void)snprintf(expected, sizeof expected, DATA "llama-%s.safetensors", name);
    worst = 0;
    /* K-quants need rows of at least 256 weights, whose sums have larger rounding errors. */
    bar = strcmp(name, "kquants") ? 2e-5 : 4e-5;
    compare_with_transformers(model, expected);
    print_message("%s: %.2g off Transformers at most\n", name, worst);
    compare_with_reference(name, model, 37);
    bar = 2e-5;
    kvd_checkpoint *c = open_checkpoint(model);
    assert_string_equal(kvd_checkpoint_dtype(c), strcmp(name, "kquants") ? name : "q4_k");
}

TEST(test_same_weights)
{
    static const char *const cases[][2] = {
        {"gqa", "llama"},
        {"mha", "llama"},
        {"llama-biases", "families"},
        {"qwen3-gqa", "families"},
        {"phi3-long", "families"},
        {"falcon-40b", "families"},
        {"gemma2-caps", "families"},
        {"gemma3-text", "families"},
        {"olmo2-gqa", "families"},
        {"glm4-half", "families"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char a_path[256], b_path[256];
        kvd_err err = {""};
        size_t compared = 0;
        (void)snprintf(a_path, sizeof a_path, DATA "%s.gguf", cases[i][0]);
        (void)snprintf(b_path, sizeof b_path, "tests/data/%s/%s", cases[i][1], cases[i][0]);
        kvd_checkpoint *a = open_checkpoint(a_path), *b = open_checkpoint(b_path);
        const int layers = kvd_checkpoint_config(a)->n_layers;
        assert_int_equal(layers, kvd_checkpoint_config(b)->n_layers);
        assert_string_equal(kvd_checkpoint_dtype(a), kvd_checkpoint_dtype(b));
        for (int part = 0; part < KVD_N_PARTS; part++)
            for (int bias = 0; bias < 2; bias++)
                for (int layer = 0; layer < (part < KVD_N_LAYER_PARTS ? layers : 1); layer++) {
                    kvd_weight x, y;
                    OK(kvd_weight_find(a, (kvd_part)part, bias, layer, &x, &err) ||
                       kvd_weight_find(b, (kvd_part)part, bias, layer, &y, &err));
                    assert_int_equal(x.n, y.n);
                    if (!x.n)
                        continue;
                    float *p = unit_alloc(x.n * sizeof *p), *q = unit_alloc(x.n * sizeof *q);
                    kvd_weight_read(&x, 0, x.n, p);
                    kvd_weight_read(&y, 0, y.n, q);
                    assert_memory_equal(p, q, x.n * sizeof *p);
                    compared += x.n;
                    const size_t first = x.n / 3, n = x.n - first;
                    kvd_weight_read(&x, first, n, p);
                    assert_memory_equal(p, q + first, n * sizeof *p);
                }
        assert_true(compared > 10000);
    }
}

/* Compares Q8_0 and Q4_0 blocks with scale 0.5 with numbers decoded by hand after GGUF's
 * definition. */
TEST(test_blocks)
{
    enum { Q8_BYTES = 34, Q4_BYTES = 18 };
    unsigned char q8[2 * Q8_BYTES] = {0x00, 0x38}, q4[2 * Q4_BYTES] = {0x00, 0x38};
    float out[64];
    for (size_t i = 0; i < 32; i++)
        q8[2 + i] = (unsigned char)(i * 8 + 1);
    for (size_t i = 0; i < 16; i++)
        q4[2 + i] = (unsigned char)(i | (15 - i) << 4);
    /* Sets the float16 scale of the second block to -1. */
    q8[Q8_BYTES + 1] = q4[Q4_BYTES + 1] = 0xbc;
    memset(q8 + Q8_BYTES + 2, 0x80, 32);
    kvd_tensor t = {.packing = KVD_Q8_0, .rank = 2, .dims = {2, 32}, .n = 64, .data = q8};
    kvd_tensor_read(&t, 0, 64, out);
    for (int i = 0; i < 32; i++) {
        assert_true(out[i] == 0.5f * (float)(i * 8 + 1 < 128 ? i * 8 + 1 : i * 8 + 1 - 256));
        assert_true(out[32 + i] == 128.0f);
    }
    t.packing = KVD_Q4_0;
    t.data = q4;
    for (size_t first = 0; first < 64; first++) {
        kvd_tensor_read(&t, first, 64 - first, out + first);
        for (int i = (int)first; i < 64; i++)
            assert_true(out[i] == (i < 16   ? 0.5f * (float)(i - 8)
                                   : i < 32 ? 0.5f * (float)(15 - (i - 16) - 8)
                                            : 8.0f));
    }
    assert_int_equal(kvd_tensor_bytes(&t, 64), sizeof q4);
    assert_string_equal(kvd_tensor_type_name(&t), "q4_0");
}

TEST(test_blocks_of_ggml)
{
    kvd_err err = {""};
    size_t compared = 0;
    kvd_gguf *g = kvd_gguf_open(DATA "blocks.gguf", &err);
    if (!g)
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < kvd_gguf_count(g); i++) {
        char name[KVD_GGUF_NAME + 4];
        float want[512], got[512];
        kvd_tensor t, f;
        if (strstr(kvd_gguf_name(g, i), ".f32"))
            continue;
        (void)snprintf(name, sizeof name, "%s.f32", kvd_gguf_name(g, i));
        OK(kvd_gguf_tensor(g, i, &t, &err) || kvd_gguf_tensor(g, kvd_gguf_find(g, name), &f, &err));
        assert_int_equal(t.n, 512);
        kvd_tensor_read(&f, 0, 512, want);
        for (size_t first = 0; first < 512; first += first < 64 ? 1 : 37) {
            kvd_tensor_read(&t, first, 512 - first, got);
            if (memcmp(got, want + first, (512 - first) * sizeof *got))
                fail_msg("%s: elements from %zu on differ", t.name, first);
        }
        kvd_tensor_read(&t, 100, 7, got);
        assert_memory_equal(got, want + 100, 7 * sizeof *got);
        compared++;
    }
    assert_int_equal(compared, KVD_MXFP4 - KVD_PLAIN);
    kvd_gguf_close(g);
    /* A scale byte of 255 means NaN in the MX specification, although ggml reads 2^127. */
    unsigned char block[17] = {255, 0x21};
    float out[2];
    kvd_block_read(KVD_MXFP4, block, 0, 2, out);
    assert_true(isnan(out[0]) && isnan(out[1]));
}

TEST(test_tokenizers)
{
    json_t *cases = load_json(DATA "tokenizers.json"), *all = load_json(TOKENIZERS "cases.json");
    const json_t *texts = json_object_get(all, "texts");
    const char *name;
    json_t *expected, *text;
    size_t k, compared = 0;
    kvd_ids ids = {0};
    json_object_foreach(cases, name, expected)
    {
        kvd_err err = {""};
        char what[256];
        (void)snprintf(what, sizeof what, DATA "tokenizer-%s.gguf", name);
        kvd_tokenizer *t = open_tokenizer(what);
        json_array_foreach(texts, k, text)
        {
            const char *const keys[] = {"ids", "plain"};
            for (size_t i = 0; i < 2; i++) {
                (void)snprintf(what, sizeof what, "%s, text %zu, %s", name, k, keys[i]);
                ids.n = 0;
                if (kvd_tokenizer_encode(t, json_string_value(text), json_string_length(text),
                                         i == 0, &ids, &err))
                    fail_msg("%s: %s", what, err.msg);
                expect_ids(what, &ids, json_array_get(json_object_get(expected, keys[i]), k));
                compared += ids.n;
            }
            const json_t *decoded = json_array_get(json_object_get(expected, "decoded"), k);
            decoded = json_is_null(decoded) ? text : decoded;
            expect_decoded(what, t, &ids, json_string_value(decoded), json_string_length(decoded));
        }
    }
    kvd_ids_release(&ids);
    assert_true(compared > 10000);
}

typedef struct {
    unsigned char b[400000];
    size_t n;
} bytes;

static void read_file(const char *path, bytes *f)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    f->n = fread(f->b, 1, sizeof f->b, file);
    (void)fclose(file);
    assert_in_range(f->n, 1, sizeof f->b - 1);
}

/* Replaces every `from` by `to`, which has the same length. Returns the number of replacements. */
static size_t substitute(bytes *f, const char *from, const char *to, size_t len)
{
    size_t found = 0;
    for (unsigned char *at = f->b; (at = memmem(at, (size_t)(f->b + f->n - at), from, len));
         found++)
        memcpy(at, to, len);
    return found;
}

static void expect_model(const bytes *f, const char *message)
{
    kvd_err err = {""};
    kvd_config c;
    if (kvd_gguf_model_parse("x.gguf", f->b, f->n, &c, &err))
        fail_msg("accepted, not refused with '%s'", message);
    if (!strstr(err.msg, message) || strncmp(err.msg, "'x.gguf': ", 10))
        fail_msg("'%s' lacks '%s'", err.msg, message);
}

static void put(bytes *f, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        f->b[f->n++] = (unsigned char)(i < 8 ? v >> (8 * i) : 0);
}

static void put_text(bytes *f, const char *s)
{
    put(f, strlen(s), 8);
    memcpy(f->b + f->n, s, strlen(s));
    f->n += strlen(s);
}

static void put_head(bytes *f, uint64_t tensors, uint64_t values)
{
    f->n = 0;
    put(f, 0x46554747, 4);
    put(f, 3, 4);
    put(f, tensors, 8);
    put(f, values, 8);
}

/* Begins a GGUF file with one metadata value: writes its key and type. The caller writes the
 * value. */
static void put_value(bytes *f, const char *key, uint32_t type)
{
    put_head(f, 0, 1);
    put_text(f, key);
    put(f, type, 4);
}

static void put_tensor(bytes *f, const char *name, size_t rows, size_t cols, uint32_t type,
                       uint64_t offset)
{
    put_text(f, name);
    put(f, cols ? 2 : 1, 4);
    if (cols)
        put(f, cols, 8);
    put(f, rows, 8);
    put(f, type, 4);
    put(f, offset, 8);
}

static void expect(const bytes *f, size_t n, const char *message)
{
    kvd_err err = {""};
    unsigned char *copy = unit_alloc(n);
    memcpy(copy, f->b, n);
    kvd_gguf *g = kvd_gguf_parse("x.gguf", copy, n, &err);
    if (message ? g || !strstr(err.msg, message) || strncmp(err.msg, "'x.gguf': ", 10) : !g)
        fail_msg("'%s' lacks '%s'", err.msg, message ? message : "nothing");
    kvd_gguf_close(g);
}

TEST(test_refused_files)
{
    static bytes f;
    put_head(&f, 0, 0);
    expect(&f, f.n, NULL);
    expect(&f, 3, "not a GGUF file");
    expect(&f, 6, "cut short: the version at byte 4");
    expect(&f, 20, "cut short: the number of values");
    f.b[0] = 'X';
    expect(&f, f.n, "not a GGUF file");
    put_head(&f, 0, 0);
    f.b[4] = 1;
    expect(&f, f.n, "GGUF version 1, only 2 to 3 are supported");
    memcpy(f.b + 4, "\0\0\0\3", 4);
    expect(&f, f.n, "big-endian");
    put_head(&f, 0, UINT64_MAX);
    expect(&f, f.n, "18446744073709551615 values and 0 tensors do not fit");
    put_head(&f, UINT64_C(1) << 40, 0);
    expect(&f, f.n, "1099511627776 tensors do not fit");

    put_head(&f, 0, 1);
    put(&f, UINT64_MAX, 8);
    put(&f, 0, 8);
    expect(&f, f.n, "cut short: a key");
    put_value(&f, "key", 13);
    put(&f, 0, 8);
    expect(&f, f.n, "'key': type 13 is not known");
    put_value(&f, "key", 9);
    put(&f, 9, 4); /* a list of lists */
    put(&f, 1, 8);
    put(&f, 0, 8);
    expect(&f, f.n, "'key': a list of type 9 is not supported");
    put_value(&f, "key", 9);
    put(&f, 10, 4);
    put(&f, UINT64_C(1) << 61, 8); /* 2^61 elements of 8 bytes: the product overflows to 0 */
    put(&f, 0, 8);
    expect(&f, f.n, "'key': cut short: a list");
    put_value(&f, "key", 9);
    put(&f, 8, 4);
    put(&f, 2, 8);
    put_text(&f, "one");
    expect(&f, f.n, "'key': cut short: a text of a list");
    put_head(&f, 0, 2);
    for (int i = 0; i < 2; i++) {
        put_text(&f, "key");
        put(&f, 0, 4);
        put(&f, 0, 1);
    }
    expect(&f, f.n, "key 'key' occurs twice");
    put_value(&f, "general.alignment", 4);
    put(&f, 12, 4);
    expect(&f, f.n, "'general.alignment' is 12");
    put_value(&f, "general.alignment", 8);
    put_text(&f, "32");
    expect(&f, f.n, "'general.alignment' is of type text, not a whole number");
}

static void one_tensor(bytes *f, const char *name, size_t rows, size_t cols, uint32_t type,
                       uint64_t offset, size_t data)
{
    put_head(f, 1, 0);
    put_tensor(f, name, rows, cols, type, offset);
    while (f->n % 32)
        put(f, 0, 1);
    for (size_t i = 0; i < data; i++)
        put(f, 0, 1);
}

TEST(test_refused_tensors)
{
    static bytes f;
    one_tensor(&f, "t", 2, 32, 8, 0, 68);
    expect(&f, f.n, NULL);
    expect(&f, f.n - 1, "tensor 't' goes to byte 0 + 68 of the data, the file has 67");
    one_tensor(&f, "t", 2, 32, 8, 0, 96);
    expect(&f, f.n, NULL);
    one_tensor(&f, "t", 2, 32, 8, 0, 69);
    expect(&f, f.n, "1 bytes after the last tensor");
    one_tensor(&f, "t", 2, 32, 8, 0, 100);
    expect(&f, f.n, "32 bytes after the last tensor");
    one_tensor(&f, "t", 2, 31, 8, 0, 68);
    expect(&f, f.n, "tensor 't': is Q8_0, but its rows of 31 are no whole blocks of 32");
    one_tensor(&f, "t", 2, 128, 12, 0, 144);
    expect(&f, f.n, "tensor 't': is Q4_K, but its rows of 128 are no whole blocks of 256");
    one_tensor(&f, "t", 2, 256, 14, 0, 420);
    expect(&f, f.n, NULL);
    expect(&f, f.n - 1, "tensor 't' goes to byte 0 + 420 of the data, the file has 419");
    one_tensor(&f, "t", 2, 32, 5, 0, 68);
    expect(&f, f.n, "tensor 't': type 5 is not known");
    one_tensor(&f, "t", 2, 32, 8, 32, 100);
    expect(&f, f.n, "tensor 't' is at 32, the one before it ends at 0");
    one_tensor(&f, "t", 0, 32, 0, 0, 0);
    expect(&f, f.n, "tensor 't': dimension 1 is 0");
    one_tensor(&f, "t", SIZE_MAX / 2, 4, 0, 0, 0);
    expect(&f, f.n, "tensor 't': dimension");
    one_tensor(&f, "t", SIZE_MAX / 8, 4, 0, 0, 0);
    expect(&f, f.n, "tensor 't': is too large");
    one_tensor(&f, "", 2, 32, 0, 0, 256);
    expect(&f, f.n, "tensor 0 has a name of 0 bytes");
    one_tensor(&f, "0123456789012345678901234567890123456789012345678901234567890123", 2, 32, 0, 0,
               256);
    expect(&f, f.n, "tensor 0 has a name of 64 bytes");
    put_head(&f, 2, 0);
    put_tensor(&f, "t", 8, 0, 0, 0);
    put_tensor(&f, "t", 8, 0, 0, 32);
    for (int i = 0; i < 128; i++)
        put(&f, 0, 1);
    expect(&f, f.n, "tensor 't' occurs twice");
    put_head(&f, 1, 0);
    put_text(&f, "t");
    put(&f, 5, 4);
    put(&f, 0, 60);
    expect(&f, f.n, "tensor 't': has 5 dimensions");
}

TEST(test_damaged)
{
    kvd_err err = {""};
    static bytes all;
    kvd_config c;
    read_file(DATA "gqa.gguf", &all);
    const size_t n = all.n;
    for (size_t len = 0; len < n; len += len < 4000 ? 1 : 997) {
        unsigned char *copy = unit_alloc(len + 1);
        memcpy(copy, all.b, len);
        assert_null(kvd_gguf_model_parse("x", copy, len, &c, &err));
    }
    for (size_t i = 0; i < 4000; i++) {
        const unsigned char old = all.b[i];
        all.b[i] ^= (unsigned char)(1 + i % 255);
        kvd_gguf_model_close(kvd_gguf_model_parse("x", all.b, n, &c, &err));
        all.b[i] = old;
    }
    kvd_gguf_model *m = kvd_gguf_model_parse("x", all.b, n, &c, &err);
    assert_non_null(m);
    kvd_gguf_model_close(m);
}

TEST(test_refused_models)
{
    static const char *const cases[][4] = {
        {"gqa", "general.architecture", "general.Xrchitecture",
         "'general.architecture' is missing"},
        {"qwen2-gqa", "qwen2", "qwen9",
         "general.architecture is 'qwen9', supported are llama, qwen2, qwen2moe"},
        {"gqa", "llama.block_count", "llama.clock_count", "'num_hidden_layers' is missing"},
        {"gqa", "llama.attention.key_length", "llama.attention.Xey_length",
         "'llama.rope.dimension_count' is 16, a head has 12: partial rotation"},
        {"gqa", "blk.0.attn_q.weight", "blk.0.attn_X.weight",
         "tensor 'blk.0.attn_X.weight' is not part of this llama model of 2 layers"},
        {"gqa", "blk.1.attn_q.weight", "blk.7.attn_q.weight",
         "tensor 'blk.7.attn_q.weight' is not part of this llama model of 2 layers"},
        {"gqa", "token_embd.weight", "token_embX.weight", "tensor 'token_embd.weight' is missing"},
        {"mha", "rope_freqs.weight", "rope_freqX.weight",
         "tensor 'rope_freqX.weight' is not part of this llama model"},
        {"phi3-long", "rope_factors_short.weight", "rope_factors_shorX.weight",
         "tensor 'rope_factors_short.weight' is missing"},
        {"phi3-long", "phi3.rope.scaling.original_context_length",
         "phi3.rope.scaling.originaX_context_length",
         "'phi3.rope.scaling.original_context_length' is missing"},
        {"mqa", "linear", "yarnXX",
         "'llama.rope.scaling.type' is 'yarnXX', only none, linear, yarn"},
    };
    static bytes all;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, DATA "%s.gguf", cases[i][0]);
        read_file(path, &all);
        const size_t len = strlen(cases[i][1]);
        assert_int_equal(len, strlen(cases[i][2]));
        assert_true(substitute(&all, cases[i][1], cases[i][2], len) > 0);
        expect_model(&all, cases[i][3]);
    }
}

enum { T_U32 = 4, T_F32 = 6, T_BOOL = 7, T_TEXT = 8 };

TEST(test_refused_values)
{
    static const struct {
        const char *key;
        uint32_t type;
        uint64_t value; /* value; bits of the float for T_F32 */
        const char *message;
    } cases[] = {
        {"split.count", T_U32, 2,
         "'split.count' is 2, models in several GGUF files are not supported"},
        {"llama.expert_group_count", T_U32, 8,
         "'llama.expert_group_count' is 8, which is not supported"},
        {"llama.logit_scale", T_F32, 0x3f000000,
         "'llama.logit_scale' is 0.5, which is not supported"},
        {"llama.attention.clamp_kqv", T_F32, 0xbf000000,
         "'llama.attention.clamp_kqv' is -0.5, which is not"},
        {"llama.attention.value_length", T_U32, 8,
         "'llama.attention.key_length' is 4, 'value_length' is 8"},
        {"llama.attention.sliding_window", T_U32, 7,
         "'llama.attention.sliding_window' is 7, which is not"},
        {"llama.vocab_size", T_U32, 9, "'llama.vocab_size' is 9, 'token_embd.weight' has 5 rows"},
        {"llama.block_count", T_F32, 0, "'llama.block_count' is of type f32, not a whole number"},
        {"llama.block_count", T_U32, 0, "'num_hidden_layers' is 0, not within 1"},
        {"llama.rope.freq_base", T_F32, 0x7f800000,
         "'llama.rope.freq_base' is not a finite number"},
        {"llama.rope.scaling.type", T_TEXT, 0,
         "'llama.rope.scaling.type' is 'x', only none, linear"},
        {"llama.block_count", T_U32, UINT32_MAX, "'num_hidden_layers' is 4294967295, not within 1"},
        {"llama.attention.temperature_scale", T_F32, 0x3f800000,
         "'llama.attention.temperature_scale' is 1, which is not supported"},
        {"llama.expert_gating_func", T_U32, 2,
         "'llama.expert_gating_func' is 2, only 1 is supported in this architecture"},
        {"llama.attention.causal", T_BOOL, 0, "'llama.attention.causal' is false, which is not"},
        {"llama.expert_weights_norm", T_BOOL, 0, "'llama.expert_weights_norm' is false"},
        {"llama.rope.freq_base_swa", T_F32, 0x461c4000, "'llama.rope.freq_base_swa' is 10000"},
        {"x", T_U32, 0, "'num_hidden_layers' is missing"},
    };
    static bytes f;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_head(&f, 1, 3);
        put_text(&f, "general.architecture");
        put(&f, T_TEXT, 4);
        put_text(&f, "llama");
        put_text(&f, "llama.attention.key_length");
        put(&f, T_U32, 4);
        put(&f, 4, 4);
        put_text(&f, cases[i].key);
        put(&f, cases[i].type, 4);
        if (cases[i].type == T_TEXT)
            put_text(&f, "x");
        else
            put(&f, cases[i].value, cases[i].type == T_BOOL ? 1 : 4);
        put_tensor(&f, "token_embd.weight", 5, 4, 0, 0);
        while (f.n % 32)
            put(&f, 0, 1);
        put(&f, 0, 5 * 4 * sizeof(float));
        expect_model(&f, cases[i].message);
    }
}

/* Reads the keys of YaRN settings that llama.cpp's converters have written since 2025. */
TEST(test_yarn_keys)
{
    static const struct {
        const char *key;
        uint32_t value; /* bits of a float */
        const char *message;
    } cases[] = {
        {"llama.rope.scaling.yarn_ext_factor", 0x3f000000,
         "'llama.rope.scaling.yarn_ext_factor' is 0.5, which is not supported"},
        {"llama.rope.scaling.yarn_log_multiplier", 0x3f800000,
         "'llama.rope.scaling.yarn_log_multiplier' is 1, which is not supported"},
        {"llama.rope.scaling.yarn_beta_fast", 0x3f000000, "'beta_fast' 0.5 is below 'beta_slow' 1"},
        {"llama.rope.scaling.yarn_beta_slow", 0x42800000, "'beta_fast' 32 is below 'beta_slow' 64"},
    };
    static const struct {
        const char *key;
        uint32_t type, value;
    } model[] = {{"llama.block_count", T_U32, 1},
                 {"llama.context_length", T_U32, 64},
                 {"llama.embedding_length", T_U32, 4},
                 {"llama.feed_forward_length", T_U32, 4},
                 {"llama.attention.head_count", T_U32, 1},
                 {"llama.attention.layer_norm_rms_epsilon", T_F32, 0x3727c5ac},
                 {"llama.rope.scaling.factor", T_F32, 0x40800000},
                 {"llama.rope.scaling.original_context_length", T_U32, 16}};
    enum { N_MODEL = sizeof model / sizeof model[0] };
    static bytes f;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_head(&f, 1, 3 + N_MODEL);
        put_text(&f, "general.architecture");
        put(&f, T_TEXT, 4);
        put_text(&f, "llama");
        put_text(&f, "llama.rope.scaling.type");
        put(&f, T_TEXT, 4);
        put_text(&f, "yarn");
        for (size_t k = 0; k < N_MODEL; k++) {
            put_text(&f, model[k].key);
            put(&f, model[k].type, 4);
            put(&f, model[k].value, 4);
        }
        put_text(&f, cases[i].key);
        put(&f, T_F32, 4);
        put(&f, cases[i].value, 4);
        put_tensor(&f, "token_embd.weight", 5, 4, 0, 0);
        while (f.n % 32)
            put(&f, 0, 1);
        put(&f, 0, 5 * 4 * sizeof(float));
        expect_model(&f, cases[i].message);
    }
}

/* In GLM-4, RoPE rotates half of each head by default. A GGUF file may set another number of
 * dimensions, up to the whole head. */
TEST(test_whole_heads_rotated)
{
    static const char key[] = "glm4.rope.dimension_count";
    static bytes all;
    kvd_config c;
    kvd_err err = {""};
    read_file(DATA "glm4-half.gguf", &all);
    unsigned char *const at = memmem(all.b, all.n, key, strlen(key));
    assert_non_null(at);
    unsigned char *const value = at + strlen(key) + 4; /* after the type */
    assert_int_equal(*value, 6);
    *value = 12;
    kvd_gguf_model *const m = kvd_gguf_model_parse("x", all.b, all.n, &c, &err);
    if (!m)
        fail_msg("%s", err.msg);
    assert_int_equal(kvd_config_rope_dims(&c), 12);
    kvd_gguf_model_close(m);
    *value = 13;
    assert_null(kvd_gguf_model_parse("x", all.b, all.n, &c, &err));
    SAYS("'glm4.rope.dimension_count' is 13, a head has 12");
}

TEST(test_refused_tokenizers)
{
    static const struct {
        const char *name, *from, *to, *message;
        size_t from_len;
    } cases[] = {
        {"gpt2", "tokenizer.ggml.model", "tokenizer.ggml.modeX",
         "'tokenizer.ggml.model' is missing", 0},
        {"gpt2", "tokenizer.ggml.pre", "tokenizer.ggml.prX", "'tokenizer.ggml.pre' is missing", 0},
        {"gpt2", "gpt-2", "gpt-9",
         "'tokenizer.ggml.pre' is 'gpt-9', supported are gpt-2, llama-bpe", 0},
        {"gpt2", "gpt2", "bert", "'tokenizer.ggml.model' is 'bert', only llama and gpt2", 0},
        {"gpt2", "tokenizer.ggml.merges", "tokenizer.ggml.mergeX",
         "'tokenizer.ggml.merges' is missing", 0},
        {"gpt2", "tokenizer.ggml.tokens", "tokenizer.ggml.tokenX",
         "'tokenizer.ggml.tokens' is missing", 0},
        {"gpt2", "tokenizer.ggml.token_type\x09\0\0\0\x05",
         "tokenizer.ggml.token_type\x09\0\0\0\x06",
         "'tokenizer.ggml.token_type' is of type list of f32, not a list of whole numbers", 30},
        {"llama", "tokenizer.ggml.scores", "tokenizer.ggml.scoreX",
         "'tokenizer.ggml.scores' is missing", 0},
        {"llama", "tokenizer.ggml.bos_token_id\x04\0\0\0\x01\0",
         "tokenizer.ggml.bos_token_id\x04\0\0\0\0\x40",
         "'tokenizer.ggml.bos_token_id' is 16384, the vocabulary has", 33},
        {"llama", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.Xos_token_id",
         "'tokenizer.ggml.bos_token_id' is missing, but the token is to be added", 0},
        {"llama", "\x06\0\0\0\0\0\0\0<0x41>", "\x06\0\0\0\0\0\0\0<0x40>",
         "piece '<0x40>' has two ids", 14},
        {"llama", "\x06\0\0\0\0\0\0\0<0x41>", "\x06\0\0\0\0\0\0\0<0x4\xff>",
         "has a zero byte or is no UTF-8", 14},
    };
    static bytes all;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvd_err err = {""};
        char path[128];
        (void)snprintf(path, sizeof path, DATA "tokenizer-%s.gguf", cases[i].name);
        read_file(path, &all);
        const size_t len = cases[i].from_len ? cases[i].from_len : strlen(cases[i].from);
        assert_true(substitute(&all, cases[i].from, cases[i].to, len) > 0);
        kvd_tokenizer *t = kvd_tokenizer_parse("x.gguf", all.b, all.n, 0, &err);
        if (t || !strstr(err.msg, cases[i].message) || strncmp(err.msg, "tokenizer 'x.gguf': ", 20))
            fail_msg("case %zu: '%s' lacks '%s'", i, err.msg, cases[i].message);
    }
}

TEST(test_where_the_tokenizer_is)
{
    kvd_err err = {""};
    kvd_checkpoint *c = open_checkpoint(DATA "gqa.gguf");
    assert_null(kvd_checkpoint_tokenizer_path(c, &err));
    SAYS("NAME.tokenizer.json or tokenizer.json is missing");
    assert_null(kvd_tokenizer_open(DATA "tokenizer-gpt2.gguf", 100, &err));
    SAYS("ids go up to 600, the model's vocabulary has 100");
}

#define SAME(name, folder) unit_with(name, test_same_as_folder, name " " folder)
#define LOADER(name)       unit_with("loader " name, test_transformers_loader, name)

int main(void)
{
    SAME("gqa", "llama");
    SAME("mha", "llama");
    SAME("mqa", "llama");
    SAME("llama-biases", "families");
    SAME("mistral-full", "families");
    SAME("qwen2-gqa", "families");
    SAME("qwen3-gqa", "families");
    SAME("phi3-long", "families");
    SAME("falcon-40b", "families");
    SAME("mixtral-full", "families");
    SAME("qwen3-moe-norm", "families");
    SAME("qwen2-moe", "families");
    SAME("gpt-oss", "families");
    SAME("gemma2-caps", "families");
    SAME("gemma3-text", "families");
    SAME("olmo2-gqa", "families");
    SAME("glm4-half", "families");
    LOADER("f16");
    LOADER("q8_0");
    LOADER("q4_0");
    LOADER("kquants");
    return unit_run(NULL, NULL);
}
