/* Tests streaming of weights: those dropped from memory must be read again with equal bits. */
#include <stdio.h>

#include "forward_case.h"
#include "model/checkpoint/streaming.h"
#include "temp_folder.h"
#include "write_shape.h"

/* models with Q, K, V in one tensor, with the embedding as output head, or with grouped query
 * heads */
static const kvd_shape made[] = {
    {"phi3", "", "",
     "{\"model_type\":\"phi3\",\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
     "\"hidden_size\":96,\"intermediate_size\":200,\"vocab_size\":301,\"max_position_embeddings\":64,"
     "\"rms_norm_eps\":1e-05,\"tie_word_embeddings\":false}"},
    {"opt", "", "",
     "{\"model_type\":\"opt\",\"num_hidden_layers\":3,\"num_attention_heads\":4,\"hidden_size\":96,"
     "\"ffn_dim\":384,\"vocab_size\":301,\"max_position_embeddings\":64,\"word_embed_proj_dim\":96}"},
    {"falcon", "", "",
     "{\"model_type\":\"falcon\",\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_kv_heads\":2,"
     "\"hidden_size\":96,\"vocab_size\":301,\"max_position_embeddings\":64,\"layer_norm_epsilon\":1e-05,"
     "\"parallel_attn\":true,\"new_decoder_architecture\":true}"},
    {"qwen3_moe", "", "",
     "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
     "\"hidden_size\":96,\"head_dim\":24,\"intermediate_size\":200,\"moe_intermediate_size\":60,\"num_experts\":9,"
     "\"num_experts_per_tok\":2,\"vocab_size\":301,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-06,"
     "\"decoder_sparse_step\":2}"},
};
enum { N_MADE = sizeof made / sizeof made[0] };

typedef struct {
    kvd_checkpoint *shape, *file;
} both;

static both open_both(const kvd_shape *s, kvd_dtype dtype)
{
    kvd_err err = {""};
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s-%s", temp_folder(), s->name, kvd_dtype_name(dtype));
    OK(write_shape(path, s, 5, dtype, 60000, &err));
    const both b = {kvd_checkpoint_of_shape(s, 5, &err), open_checkpoint(path)};
    if (!b.shape)
        fail_msg("%s", err.msg);
    unit_at_end(end_checkpoint, b.shape);
    assert_string_equal(kvd_checkpoint_dtype(b.file), kvd_dtype_name(dtype));
    return b;
}

TEST(test_same_elements)
{
    for (size_t i = 0; i < N_MADE; i++)
        for (int dtype = KVD_F32; dtype <= KVD_BF16; dtype += KVD_BF16) {
            both b = open_both(&made[i], (kvd_dtype)dtype);
            for (int p = 0; p < 2 * KVD_N_PARTS; p++) {
                kvd_err err = {""};
                kvd_weight x, y;
                OK(kvd_weight_find(b.shape, (kvd_part)(p / 2), p % 2, 2, &x, &err));
                OK(kvd_weight_find(b.file, (kvd_part)(p / 2), p % 2, 2, &y, &err));
                assert_int_equal(x.n, y.n);
                if (x.n == 0)
                    continue;
                assert_true(y.tensor.mapped && !x.tensor.mapped);
                float *want = unit_alloc(x.n * sizeof *want), *got = unit_alloc(x.n * sizeof *got);
                kvd_weight_read(&x, 0, x.n, want);
                for (int again = 0; again < 2; again++) {
                    kvd_weight_read(&y, 0, y.n, got);
                    assert_memory_equal(got, want, x.n * sizeof *want);
                    kvd_tensor_drop(&y.tensor);
                    kvd_tensor_drop(&x.tensor);
                }
            }
        }
}

static void run_twice(const kvd_checkpoint *c, float *hidden, float *logits)
{
    enum { N = 50 };
    kvd_err err = {""};
    uint32_t id[N];
    for (uint32_t i = 0; i < N; i++)
        id[i] = i * 7919 % 301;
    const size_t offset[3] = {0, 20, N};
    const kvd_batch batch = {.n_sequences = 2, .offset = offset, .id = id};
    kvd_attention *const hook = &dense_attention()->hook;
    kvd_forward *f = open_forward(c, N, N);
    /* The first run drops the memory pages of the weights, so the second run must read them
     * again. */
    OK(kvd_forward_run(f, &batch, hook, -1, hidden, &err));
    OK(kvd_forward_run(f, &batch, hook, -1, hidden, &err));
    OK(kvd_forward_logits(f, hidden, N, logits, &err));
}

TEST(test_same_pass)
{
    static float hidden[2][50 * 96], logits[2][50 * 301];
    for (size_t i = 0; i < N_MADE; i++)
        for (int dtype = KVD_F32; dtype <= KVD_BF16; dtype += KVD_BF16) {
            both b = open_both(&made[i], (kvd_dtype)dtype);
            run_twice(b.shape, hidden[0], logits[0]);
            run_twice(b.file, hidden[1], logits[1]);
            assert_memory_equal(hidden[0], hidden[1], sizeof hidden[0]);
            assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
        }
}

/* Attention function that always fails, which ends the forward pass early. */
static int give_up(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err)
{
    (void)self;
    (void)in;
    (void)out;
    return kvd_fail(err, "enough");
}

TEST(test_given_up)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s-f32", temp_folder(), made[0].name);
    const uint32_t id[4] = {1, 2, 3, 4};
    const size_t offset[2] = {0, 4};
    const kvd_batch batch = {.n_sequences = 1, .offset = offset, .id = id};
    kvd_attention hook = {.run = give_up};
    for (int i = 0; i < 50; i++) {
        kvd_err err = {""};
        kvd_checkpoint *c = kvd_checkpoint_open(path, &err);
        kvd_forward *f = c ? kvd_forward_new(c, 4, 4, &err) : NULL;
        assert_non_null(f);
        FAILS(kvd_forward_run(f, &batch, &hook, -1, NULL, &err), "enough");
        kvd_checkpoint_close(c);
        kvd_forward_free(f);
    }
}

TEST(test_memory_stays)
{
    enum { N = 1 << 16 };
    float *x = unit_alloc(N * sizeof *x);
    for (size_t i = 0; i < N; i++)
        x[i] = (float)i;
    kvd_weight w = {.tensor = {.dtype = KVD_F32, .rank = 1, .dims = {N}, .n = N, .data = x},
                    .n = N};
    kvd_prefetch p = {0};
    kvd_prefetch_wait(&p);
    kvd_prefetch_start(&p, &w, 1);
    kvd_tensor_drop(&w.tensor);
    kvd_prefetch_wait(&p);
    kvd_prefetch_wait(&p);
    for (size_t i = 0; i < N; i++)
        assert_true(x[i] == (float)i);
}

TEST_MAIN(NULL, NULL)
