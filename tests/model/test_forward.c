/* Tests the CPU's forward pass against double precision and Transformers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/threads.h"
#include "forward_case.h"
#include "make_checkpoint.h"
#include "temp_folder.h"
#include "unit.h"

TEST(test_random_checkpoints_match_reference)
{
    const struct {
        const char *what;
        int layers, heads, kv_heads, d_head, d_model, ffn, vocab, shards;
        bool tied;
        kvd_dtype dtype;
        const char *rope;
        size_t n;
    } model[] = {
        {"mha f32 tied", 2, 4, 4, 16, 64, 96, 300, 1, true, KVD_F32, "default", 40},
        {"gqa bf16 untied", 3, 6, 2, 16, 48, 80, 261, 3, false, KVD_BF16, "llama3", 130},
        {"mqa f16 tied", 1, 5, 1, 8, 32, 33, 17, 1, true, KVD_F16, "linear", 64},
        {"gqa f32 untied, wide heads", 5, 2, 1, 64, 36, 52, 99, 2, false, KVD_F32, "default", 256},
        {"one token", 2, 4, 2, 16, 64, 96, 300, 1, true, KVD_BF16, "default", 1},
        {"smallest", 1, 1, 1, 2, 1, 1, 2, 1, false, KVD_F32, "default", 5},
    };
    kvd_err err;
    for (size_t i = 0; i < sizeof model / sizeof model[0]; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "model%zu", i);
        made_spec s = MADE_SPEC_DEFAULTS;
        s.layers = model[i].layers;
        s.heads = model[i].heads;
        s.kv_heads = model[i].kv_heads;
        s.d_head = model[i].d_head;
        s.d_model = model[i].d_model;
        s.ffn = model[i].ffn;
        s.vocab = model[i].vocab;
        s.shards = model[i].shards;
        s.tied = model[i].tied;
        s.dtype = model[i].dtype;
        s.rope = model[i].rope;
        s.seed = i;
        const char *path = temp_file(name);
        OK(make_checkpoint(path, &s, &err));
        compare_with_reference(model[i].what, path, model[i].n);
    }
}

TEST(test_llama2c_matches_reference)
{
    kvd_err err;
    for (int tied = 0; tied < 2; tied++) {
        made_spec s = MADE_SPEC_DEFAULTS;
        s.tied = tied;
        const char *path = temp_file(tied ? "tied.bin" : "untied.bin");
        OK(make_llama2c(path, &s, &err));
        compare_with_reference(path, path, 77);
    }
}

TEST(test_demo_model_matches_reference)
{
    compare_with_reference("kvdim-6m", "data/models/kvdim-6m", 6);
}

TEST(test_head_in_slabs)
{
    kvd_err err;
    made_spec s = MADE_SPEC_DEFAULTS;
    s.layers = 1;
    s.d_model = 1024;
    s.vocab = 4500;
    s.ffn = 8;
    s.dtype = KVD_BF16;
    OK(make_checkpoint(temp_file("slabs"), &s, &err));
    compare_with_reference("head in slabs", temp_file("slabs"), 3);
}

/* A header that is one byte longer puts every tensor at an odd address. */
TEST(test_unaligned_tensors)
{
    kvd_err err;
    made_spec s = MADE_SPEC_DEFAULTS;
    char *bytes = unit_alloc(1 << 20);
    uint64_t len;
    OK(make_checkpoint(temp_file("odd"), &s, &err));
    FILE *f = fopen(temp_file("odd/model.safetensors"), "r+b");
    assert_non_null(f);
    const size_t size = fread(bytes, 1, 1 << 20, f);
    assert_in_range(size, 1000, (1 << 20) - 1);
    memcpy(&len, bytes, sizeof len);
    memmove(bytes + 8 + len + 1, bytes + 8 + len, size - 8 - len);
    bytes[8 + len++] = ' ';
    memcpy(bytes, &len, sizeof len);
    rewind(f);
    assert_int_equal(fwrite(bytes, 1, size + 1, f), size + 1);
    assert_int_equal(fclose(f), 0);
    compare_with_reference("unaligned", temp_file("odd"), 20);
}

static kvd_checkpoint *open_default(const char *name)
{
    kvd_err err = {""};
    made_spec s = MADE_SPEC_DEFAULTS;
    s.layers = 3;
    OK(make_checkpoint(temp_file(name), &s, &err));
    kvd_checkpoint *checkpoint = open_checkpoint(temp_file(name));
    return checkpoint;
}

TEST(test_ragged_batches_equal_single_sequences)
{
    kvd_err err = {""};
    kvd_checkpoint *checkpoint = open_default("ragged");
    const size_t offset[] = {0, 5, 6, 206, 208, 251};
    uint32_t *id = token_ids(251, 300, 3);
    recording all, one;
    const kvd_batch b = {.n_sequences = 5, .offset = offset, .id = id};
    OK(run(checkpoint, &b, -1, &all, &err));
    for (size_t s = 0; s < 5; s++) {
        const size_t n = offset[s + 1] - offset[s], alone[2] = {0, n};
        const kvd_batch single = {.n_sequences = 1, .offset = alone, .id = id + offset[s]};
        OK(run(checkpoint, &single, -1, &one, &err));
        for (int kind = 0; kind < N_KINDS; kind++)
            for (size_t l = 0; l < (kind == LOGITS ? 1 : 3); l++) {
                const size_t width = width_of(one.c, kind);
                const float *x = all.x[kind] + (l * 251 + offset[s]) * width,
                            *y = one.x[kind] + l * n * width;
                double error = 0, square = 0;
                for (size_t i = 0; i < n * width; i++) {
                    error += pow((double)x[i] - (double)y[i], 2);
                    square += pow((double)y[i], 2);
                }
                assert_true(sqrt(error / square) < 3e-6);
            }
    }
}

TEST(test_threads)
{
    kvd_err err = {""};
    kvd_checkpoint *checkpoint = open_default("threads");
    const size_t offset[] = {0, 200, 250};
    uint32_t *id = token_ids(250, 300, 4);
    const int before = (int)kvd_thread_count();
    const kvd_batch b = {.n_sequences = 2, .offset = offset, .id = id};
    for (int threads = 1; threads <= 6; threads++) {
        recording first, again;
        kvd_threads_limit(threads);
        OK(run(checkpoint, &b, -1, &first, &err));
        OK(run(checkpoint, &b, -1, &again, &err));
        assert_memory_equal(first.x[LOGITS], again.x[LOGITS], 250 * 300 * sizeof(float));
        compare_with_reference("threads", temp_file("threads"), 150);
    }
    kvd_threads_limit(before);
}

TEST(test_last_layer)
{
    kvd_err err = {""};
    kvd_checkpoint *checkpoint = open_default("last");
    const size_t offset[] = {0, 9, 20};
    uint32_t *id = token_ids(20, 300, 5);
    float hidden[20 * 64];
    const kvd_batch b = {.n_sequences = 2, .offset = offset, .id = id};
    recording all, some;
    OK(run(checkpoint, &b, -1, &all, &err));
    assert_int_equal(all.layers, 3);
    for (int last = 0; last < 3; last++) {
        OK(run(checkpoint, &b, last, &some, &err));
        assert_int_equal(some.layers, last + 1);
        assert_memory_equal(all.x[O], some.x[O],
                            (size_t)(last + 1) * 20 * width_of(all.c, O) * sizeof(float));
    }

    kvd_dense_attention *const dense = dense_attention();
    kvd_forward *f = open_forward(checkpoint, 20, 11);
    FAILS(kvd_forward_run(f, &b, &dense->hook, 3, NULL, &err),
          "layers 0 .. 3 asked for, the model has 3");
    FAILS(kvd_forward_run(f, &b, &dense->hook, 1, hidden, &err),
          "layers 0 .. 1 asked for with the final state, the model has 3");
    OK(kvd_forward_run(f, &b, &dense->hook, 2, hidden, &err));
}

TEST(test_run_in_two_parts)
{
    kvd_err err = {""};
    kvd_checkpoint *checkpoint = open_default("parts");
    enum { N = 140, D = 64 };
    const size_t offset[] = {0, 9, 140}, other_offset[] = {0, 7};
    uint32_t *id = token_ids(N, 300, 8);
    float *whole = unit_alloc(N * D * sizeof *whole), *parts = unit_alloc(N * D * sizeof *parts);
    float *residual = unit_alloc(N * D * sizeof *residual);
    const kvd_batch b = {.n_sequences = 2, .offset = offset, .id = id};
    const kvd_batch other = {.n_sequences = 1, .offset = other_offset, .id = id + 40};
    kvd_dense_attention *const dense = dense_attention();
    kvd_forward *f = open_forward(checkpoint, N, N);
    OK(kvd_forward_run(f, &b, &dense->hook, -1, whole, &err));
    for (int layer = 0; layer < 3; layer++) {
        memset(parts, 0, N * D * sizeof *parts);
        OK(kvd_forward_residual(f, &b, &dense->hook, layer, residual, &err));
        OK(kvd_forward_run(f, &other, &dense->hook, -1, parts, &err));
        OK(kvd_forward_run_from(f, &b, &dense->hook, layer, residual, parts, &err));
        assert_memory_equal(whole, parts, N * D * sizeof *parts);
    }
    FAILS(kvd_forward_residual(f, &b, &dense->hook, 3, residual, &err),
          "layer 3 asked for, the model has 3");
    FAILS(kvd_forward_run_from(f, &b, &dense->hook, -1, residual, parts, &err),
          "layer -1 asked for, the model has 3");
}

TEST(test_bad_batches)
{
    kvd_err err = {""};
    kvd_checkpoint *checkpoint = open_default("bad");
    uint32_t *id = token_ids(60, 300, 6);
    kvd_dense_attention *const dense = dense_attention();
    assert_null(kvd_forward_new(checkpoint, 0, 1, &err));
    assert_string_equal(err.msg, "a batch of 0 tokens is outside 1 .. 2147483647");
    assert_null(kvd_forward_new(checkpoint, 300, 257, &err));
    SAYS("sequences of 257 tokens, but the model was made for 1 .. 256");
    assert_null(kvd_forward_new(checkpoint, 300, 0, &err));
    kvd_forward *f = open_forward(checkpoint, 50, 20);

    const struct {
        size_t n_sequences, offset[4];
        const char *message;
    } bad[] = {
        {0, {0}, "a batch of 0 sequences and 0 tokens, room for 50"},
        {3, {0, 20, 40, 51}, "a batch of 3 sequences and 51 tokens, room for 50"},
        {2, {0, 10, 31}, "sequence 41 has 21 tokens, not 1 .. 20"},
        {3, {0, 10, 10, 12}, "sequence 41 has 0 tokens, not 1 .. 20"},
        {3, {0, 10, 5, 12}, "sequence 41 has 0 tokens, not 1 .. 20"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const kvd_batch b = {.n_sequences = bad[i].n_sequences,
                             .offset = bad[i].offset,
                             .first_sequence = 40,
                             .id = id};
        FAILS(kvd_forward_run(f, &b, &dense->hook, -1, NULL, &err), bad[i].message);
    }
    const size_t offset[] = {0, 12, 30};
    const kvd_batch b = {.n_sequences = 2, .offset = offset, .first_sequence = 7, .id = id};
    id[17] = 300;
    FAILS(kvd_forward_run(f, &b, &dense->hook, -1, NULL, &err),
          "sequence 8, position 5: token id 300 is not below the vocabulary size 300");
    id[17] = UINT32_MAX;
    assert_int_equal(kvd_forward_run(f, &b, &dense->hook, -1, NULL, &err), -1);
    id[17] = 299;
    OK(kvd_forward_run(f, &b, &dense->hook, -1, NULL, &err));
}

TEST(test_nonfinite_weights)
{
    const struct {
        const char *tensor;
        size_t i;
        float value;
        const char *message;
    } bad[] = {
        {"model.layers.1.mlp.down_proj.weight", 5, NAN,
         "layer 1, row 0 (sequence 3, position 0): activation is not finite"},
        {"model.layers.0.self_attn.k_proj.weight", 64, INFINITY,
         "layer 0, row 0 (sequence 3, position 0): activation is not finite"},
        {"model.layers.2.post_attention_layernorm.weight", 1, -INFINITY,
         "layer 2, row 0 (sequence 3, position 0): activation is not finite"},
        {"model.embed_tokens.weight", 17 * 64 + 3, NAN,
         "embedding, row 17 (sequence 4, position 5): activation is not finite"},
        {"model.norm.weight", 0, NAN,
         "final norm, row 0 (sequence 3, position 0): activation is not finite"},
        {"lm_head.weight", 123 * 64, INFINITY,
         "logit of token 123 is not finite, in row 0 of the batch"},
    };
    made_spec s = MADE_SPEC_DEFAULTS;
    s.layers = 3;
    s.tied = false;
    uint32_t id[30];
    for (uint32_t i = 0; i < 30; i++)
        id[i] = i;
    const size_t offset[] = {0, 12, 30};
    const kvd_batch b = {.n_sequences = 2, .offset = offset, .first_sequence = 3, .id = id};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvd_err err = {""};
        recording got;
        OK(make_checkpoint(temp_file("nan"), &s, &err));
        OK(made_poke(temp_file("nan/model.safetensors"), bad[i].tensor, bad[i].i, bad[i].value,
                     &err));
        kvd_checkpoint *checkpoint = open_checkpoint(temp_file("nan"));
        char message[256];
        (void)snprintf(message, sizeof message, "'%s': %s", temp_file("nan"), bad[i].message);
        FAILS(run(checkpoint, &b, -1, &got, &err), message);
    }
}

TEST(test_wrong_shape_and_missing_tensor)
{
    kvd_err err = {""};
    made_spec s = MADE_SPEC_DEFAULTS;
    OK(make_checkpoint(temp_file("shape"), &s, &err));
    s.ffn = 97;
    OK(made_config(temp_file("shape/config.json"), &s, &err));
    kvd_checkpoint *checkpoint = open_checkpoint(temp_file("shape"));
    assert_null(kvd_forward_new(checkpoint, 10, 10, &err));
    SAYS("tensor 'model.layers.0.mlp.gate_proj.weight' has shape [96][64], the "
         "configuration needs [97][64]");
    s.ffn = 96;
    s.layers = 3;
    OK(made_config(temp_file("shape/config.json"), &s, &err));
    checkpoint = open_checkpoint(temp_file("shape"));
    assert_null(kvd_forward_new(checkpoint, 10, 10, &err));
    SAYS("tensor 'model.layers.2.input_layernorm.weight' is missing");
}

/* W_O and W_V of a layer, as the forward pass returns them, must equal the stored tensors, W_O
 * after transposition. */
TEST(test_weight_slices)
{
    kvd_err err = {""};
    made_spec s = MADE_SPEC_DEFAULTS;
    s.dtype = KVD_BF16;
    s.d_model = 40;
    OK(make_checkpoint(temp_file("slices"), &s, &err));
    kvd_checkpoint *checkpoint = open_checkpoint(temp_file("slices"));
    kvd_forward *f = open_forward(checkpoint, 1, 1);
    enum { D = 40, HEADS = 4, KV = 2, DH = 16 };
    float *w_o = unit_alloc((size_t)HEADS * DH * D * sizeof *w_o),
          *w_v = unit_alloc((size_t)KV * DH * D * sizeof *w_v);
    float *stored = unit_alloc((size_t)HEADS * DH * D * sizeof *stored);
    kvd_tensor t;
    OK(kvd_forward_weights_o(f, 1, w_o, &err));
    OK(kvd_forward_weights_v(f, 1, w_v, &err));
    OK(kvd_checkpoint_tensor(checkpoint, "model.layers.1.self_attn.o_proj.weight", D, HEADS * DH,
                             &t, &err));
    kvd_to_f32(t.dtype, t.data, stored, t.n);
    for (size_t h = 0; h < HEADS; h++)
        for (size_t j = 0; j < DH; j++)
            for (size_t m = 0; m < D; m++)
                assert_true(w_o[(h * DH + j) * D + m] == stored[m * HEADS * DH + h * DH + j]);
    OK(kvd_checkpoint_tensor(checkpoint, "model.layers.1.self_attn.v_proj.weight", KV * DH, D, &t,
                             &err));
    kvd_to_f32(t.dtype, t.data, stored, t.n);
    assert_memory_equal(w_v, stored, t.n * sizeof *stored);
    FAILS(kvd_forward_weights_o(f, 2, w_o, &err), "layer 2 asked for, the model has 2");
    assert_int_equal(kvd_forward_weights_v(f, -1, w_v, &err), -1);
}

TEST(test_flop_counts)
{
    const kvd_config c = {.n_layers = 2,
                          .n_heads = 4,
                          .n_kv_heads = 2,
                          .d_head = 16,
                          .d_model = 64,
                          .d_ffn = 96,
                          .vocab_size = 300};
    /* floating-point operations per token: 2 for each weight, and 4 d_head for each query head and
     * key that the token sees */
    const double weights = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 96;
    assert_true(kvd_forward_flop_per_token(&c, 1) == 2 * (2 * weights + 4.0 * 16 * 4));
    assert_true(kvd_forward_flop_per_token(&c, 9) == 2 * (2 * weights + 4.0 * 16 * 4 * 5));
    assert_true(kvd_head_flop_per_token(&c) == 2.0 * 64 * 300);
}

TEST(test_transformers_gqa)
{
    compare_with_transformers("tests/data/llama/gqa", "tests/data/llama/gqa/expected.safetensors");
}

TEST(test_transformers_mha_llama3_rope)
{
    compare_with_transformers("tests/data/llama/mha", "tests/data/llama/mha/expected.safetensors");
}

TEST(test_transformers_mqa_linear_rope)
{
    compare_with_transformers("tests/data/llama/mqa", "tests/data/llama/mqa/expected.safetensors");
}

TEST(test_transformers_kvdim_6m)
{
    compare_with_transformers("data/models/kvdim-6m", "tests/data/llama/kvdim-6m.safetensors");
}

TEST(test_transformers_kvdim_25m)
{
    const char *shared = getenv("KVDIM_SHARED");
    char model[4096];
    (void)snprintf(model, sizeof model, "%s/inputs/models/kvdim-25m",
                   shared && *shared ? shared : "../shared");
    if (access(model, R_OK)) {
        print_message("no %s\n", model);
        skip();
    }
    compare_with_transformers(model, "tests/data/llama/kvdim-25m.safetensors");
}

TEST_MAIN(NULL, NULL)
