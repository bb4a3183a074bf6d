/* Tests every model family against Transformers (tests/oracle/make_family_fixtures.py). */
#include <stdio.h>

#include "forward_case.h"
#include "model/checkpoint/weights.h"
#include "temp_folder.h"
#include "unit.h"

static const char folder[] = "tests/data/families";

/* Compares the model in the folder named by *state with Transformers' results. */
static void test_transformers(void **state)
{
    const char *name = *state;
    char model[256], expected[300];
    (void)snprintf(model, sizeof model, "%s/%s", folder, name);
    (void)snprintf(expected, sizeof expected, "%s/expected.safetensors", model);
    worst = 0;
    compare_with_transformers(model, expected);
    print_message("%s: %.2g off Transformers at most\n", name, worst);
    compare_with_reference(name, model, 37);
}

enum { N_PARTS_OF_RUN = 3, N_BATCH = 9 + 50 + 25 };
static const size_t batch_offset[] = {0, 9, 59, N_BATCH};

/* Sequences of a batch must not affect each other, even if only some of them are long enough for
 * LongRoPE's long divisors. */
static void test_batch(void **state)
{
    kvd_err err = {""};
    kvd_checkpoint *checkpoint = open_family(*state);
    uint32_t *id = token_ids(N_BATCH, (size_t)kvd_checkpoint_config(checkpoint)->vocab_size, 3);
    const kvd_batch b = {.n_sequences = N_PARTS_OF_RUN, .offset = batch_offset, .id = id};
    recording all, one;
    OK(run(checkpoint, &b, -1, &all, &err));
    for (size_t s = 0; s < N_PARTS_OF_RUN; s++) {
        const size_t at = batch_offset[s], n = batch_offset[s + 1] - at, alone[2] = {0, n};
        const kvd_batch single = {.n_sequences = 1, .offset = alone, .id = id + at};
        OK(run(checkpoint, &single, -1, &one, &err));
        for (int kind = 0; kind < N_KINDS; kind++) {
            const size_t layers = kind == LOGITS ? 1 : (size_t)all.c->n_layers,
                         width = width_of(all.c, kind);
            double error = 0, square = 0;
            for (size_t l = 0; l < layers; l++)
                for (size_t i = 0; i < n * width; i++) {
                    const double x = (double)all.x[kind][(l * N_BATCH + at) * width + i];
                    const double y = (double)one.x[kind][l * n * width + i];
                    error += (x - y) * (x - y);
                    square += y * y;
                }
            assert_near(*state, kind_name[kind], error, square);
        }
    }
}

static void test_two_parts(void **state)
{
    kvd_err err = {""};
    kvd_checkpoint *checkpoint = open_family(*state);
    const kvd_config *c = kvd_checkpoint_config(checkpoint);
    const size_t size = N_BATCH * (size_t)c->d_model;
    uint32_t *id = token_ids(N_BATCH, (size_t)c->vocab_size, 4);
    float *whole = unit_alloc(size * sizeof *whole), *parts = unit_alloc(size * sizeof *parts);
    float *residual = unit_alloc(size * sizeof *residual);
    const kvd_batch b = {.n_sequences = N_PARTS_OF_RUN, .offset = batch_offset, .id = id};
    kvd_dense_attention *const dense = dense_attention();
    kvd_forward *f = open_forward(checkpoint, N_BATCH, 50);
    OK(kvd_forward_run(f, &b, &dense->hook, -1, whole, &err));
    for (int layer = 0; layer < c->n_layers; layer++) {
        OK(kvd_forward_residual(f, &b, &dense->hook, layer, residual, &err));
        OK(kvd_forward_run_from(f, &b, &dense->hook, layer, residual, parts, &err));
        assert_memory_equal(whole, parts, size * sizeof *parts);
    }
}

TEST(test_slices_of_shared_tensors)
{
    kvd_err err = {""};
    static const char *const names[] = {"falcon-11b", "phi3-long", "qwen2-window", "opt-after"};
    for (size_t i = 0; i < 4; i++) {
        kvd_checkpoint *checkpoint = open_family(names[i]);
        const kvd_config *c = kvd_checkpoint_config(checkpoint);
        const size_t d = (size_t)c->d_model, rows = (size_t)c->n_kv_heads * (size_t)c->d_head;
        const size_t width = (size_t)c->n_heads * (size_t)c->d_head;
        float *w_v = unit_alloc(rows * d * sizeof *w_v), *w_o = unit_alloc(width * d * sizeof *w_o);
        float *part = unit_alloc(width * d * sizeof *part);
        kvd_weight w;
        kvd_forward *f = open_forward(checkpoint, 1, 1);
        OK(kvd_forward_weights_v(f, 0, w_v, &err));
        OK(kvd_forward_weights_o(f, 0, w_o, &err));
        OK(kvd_weight_find(checkpoint, KVD_PART_V, false, 0, &w, &err));
        kvd_weight_read(&w, 0, w.n, part);
        assert_memory_equal(w_v, part, rows * d * sizeof *part);
        OK(kvd_weight_find(checkpoint, KVD_PART_O, false, 0, &w, &err));
        kvd_weight_read(&w, 0, w.n, part);
        for (size_t j = 0; j < width * d; j++)
            assert_true(w_o[j] == part[j % d * width + j / d]);
    }
}

TEST(test_configuration_decides)
{
    static const char *const cases[][4] = {
        /* model folder, text in config.json, its replacement, expected part of the message */
        {"llama-biases", "\"attention_bias\": true", "\"attention_bias\": false",
         "self_attn.k_proj.bias' is not part of this llama model of 2 layers"},
        {"opt-nobias", "\"enable_bias\": false", "\"enable_bias\": true",
         "q_proj.bias' is missing"},
        {"opt-after", "\"word_embed_proj_dim\": 20", "\"word_embed_proj_dim\": 48",
         "model.decoder.project_in.weight' is not part of this opt model"},
        {"falcon-40b", "\"num_kv_heads\": 2", "\"num_kv_heads\": 3",
         "query_key_value.weight' has shape [160][96], the configuration needs [192][96]"},
        {"falcon-11b", "\"num_ln_in_parallel_attn\": 1", "\"num_ln_in_parallel_attn\": 2",
         "input_layernorm.bias' is not part of this falcon model"},
        {"qwen3-gqa", "qwen3\"", "qwen2\"",
         "architectures is 'Qwen3ForCausalLM', model_type 'qwen2' requires"},
        {"phi3-window", "\"intermediate_size\": 48", "\"intermediate_size\": 24",
         "gate_up_proj.weight' has shape [96][160], the configuration needs [48][160]"},
    };
    const char *const dir = temp_folder();
    char command[1024];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvd_err err = {""};
        (void)snprintf(command, sizeof command,
                       "rm -rf %s/m && cp -r %s/%s %s/m && sed -i 's/%s/%s/' %s/m/config.json", dir,
                       folder, cases[i][0], dir, cases[i][1], cases[i][2], dir);
        assert_int_equal(system(command), 0);
        (void)snprintf(command, sizeof command, "%s/m", dir);
        kvd_checkpoint *checkpoint = kvd_checkpoint_open(command, &err);
        kvd_forward *f = checkpoint ? kvd_forward_new(checkpoint, 1, 1, &err) : NULL;
        if (f || !strstr(err.msg, cases[i][3]))
            fail_msg("%s: '%s' lacks '%s'", cases[i][0], err.msg, cases[i][3]);
        kvd_checkpoint_close(checkpoint);
    }
}

/* The prefix "model." may be missing from the weights' names, but from either all of them or
 * none. */
TEST(test_names_without_base)
{
    static const struct {
        const char *name, *from, *to, *message;
    } cases[] = {
        {"opt-before", "\"model\\.decoder", "      \"decoder", NULL},
        {"falcon-7b", "\"transformer\\.", "            \"", NULL},
        /* The output head, if it has its own weights, is named lm_head. It must be found even if
         * the other tensor names lose their prefix "model.". */
        {"llama-biases", "\"model\\.", "      \"", NULL},
        /* tensor names as Transformers 4.52 and later may write them */
        {"mistral3", "\"language_model\\.model\\.",
         "\"model.language_model./g;s/\"language_model\\.lm_head/               \"lm_head", NULL},
        {"opt-before", "\"model\\.decoder\\.layers", "      \"decoder.layers",
         "tensor 'decoder.layers.0.fc1.bias' is not part of this opt model of 2 layers"},
        {"opt-before", "\"model\\.decoder\\.embed", "      \"decoder.embed",
         "tensor 'model.decoder.final_layer_norm.bias' is not part of this opt model of 2 layers"},
    };
    const char *const dir = temp_folder();
    char command[1024];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvd_err err = {""};
        char expected[300];
        (void)snprintf(
            command, sizeof command,
            "rm -rf %s/m && cp -r %s/%s %s/m && LC_ALL=C sed -i 's/%s/%s/g' %s/m/model.safetensors",
            dir, folder, cases[i].name, dir, cases[i].from, cases[i].to, dir);
        assert_int_equal(system(command), 0);
        (void)snprintf(command, sizeof command, "%s/m", dir);
        (void)snprintf(expected, sizeof expected, "%s/%s/expected.safetensors", folder,
                       cases[i].name);
        if (!cases[i].message) {
            compare_with_transformers(command, expected);
            continue;
        }
        assert_null(kvd_checkpoint_open(command, &err));
        SAYS(cases[i].message);
    }
}

TEST(test_flop_counts)
{
    kvd_config c = {.n_layers = 2,
                    .n_heads = 4,
                    .n_kv_heads = 2,
                    .d_head = 16,
                    .d_model = 64,
                    .d_ffn = 96,
                    .vocab_size = 300,
                    .activation = KVD_GELU,
                    .window = 3,
                    .window_layers = {1}};
    const double weights = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 2 * 64 * 96, pair = 4.0 * 16 * 4;
    assert_true(kvd_forward_flop_per_token(&c, 3) == 2 * (2 * weights + pair * 2));
    /* With 5 tokens, a query of layer 0 (sliding window 3) sees 12 / 5 keys on average, a query of
     * layer 1 (no window) sees 3. */
    assert_true(fabs(kvd_forward_flop_per_token(&c, 5) - (4 * weights + pair * 12 / 5 + pair * 3)) <
                1e-6);
    c.d_embed = 32;
    assert_true(kvd_head_flop_per_token(&c) == 2.0 * 32 * 300 + 2.0 * 32 * 64);
}

#define FAMILY(name) unit_with(name, test_transformers, name)

int main(void)
{
    TEST_WITH("mistral-window", test_batch);
    TEST_WITH("qwen2-window", test_batch);
    TEST_WITH("phi3-long", test_batch);
    TEST_WITH("opt-before", test_batch);
    TEST_WITH("opt-after", test_batch);
    TEST_WITH("falcon-40b", test_batch);
    TEST_WITH("deepseek-v3", test_batch);
    TEST_WITH("deepseek-v2", test_two_parts);
    TEST_WITH("phi3-long", test_two_parts);
    TEST_WITH("qwen3-mqa", test_two_parts);
    TEST_WITH("opt-after", test_two_parts);
    TEST_WITH("opt-nobias", test_two_parts);
    TEST_WITH("falcon-7b", test_two_parts);
    TEST_WITH("falcon-40b", test_two_parts);
    FAMILIES(FAMILY);
    ROUTED(FAMILY);
    LATENT(FAMILY);
    return unit_run(NULL, NULL);
}
