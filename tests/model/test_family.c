#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/checkpoint/family.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/weights.h"
#include "unit.h"

static kvd_config sizes(const char *family)
{
    kvd_config c = {.n_layers = 12,
                    .n_heads = 6,
                    .n_kv_heads = 3,
                    .d_head = 4,
                    .d_model = 20,
                    .d_ffn = 7,
                    .vocab_size = 50,
                    .max_positions = 30};
    (void)snprintf(c.family, sizeof c.family, "%s", family);
    return c;
}

static void assert_place(const kvd_config *c, kvd_part part, bool bias, const char *name,
                         size_t stored_rows, size_t rows, size_t cols, size_t first, size_t block,
                         size_t stride)
{
    kvd_place p;
    assert_true(kvd_part_place(c, part, bias, 11, &p));
    assert_string_equal(p.name, name);
    assert_int_equal(p.stored_rows, stored_rows);
    assert_int_equal(p.rows, rows);
    assert_int_equal(p.cols, cols);
    assert_int_equal(p.first, first);
    assert_int_equal(p.block, block);
    assert_int_equal(p.stride, stride);
}

TEST(test_registry)
{
    const kvd_family *f = NULL;
    assert_non_null(kvd_family_at(6));
    for (size_t i = 0; (f = kvd_family_at(i)); i++) {
        assert_ptr_equal(kvd_family_find(f->name, NULL), f);
        assert_ptr_equal(kvd_family_find(NULL, f->architecture), f);
        assert_ptr_equal(kvd_family_find(f->name, f->architecture), f);
        assert_true(strlen(f->name) < sizeof((kvd_config *)0)->family);
        const kvd_config c = sizes(f->name);
        assert_ptr_equal(kvd_family_of(&c), f);
    }
    assert_null(kvd_family_find("gemma4", NULL));
    assert_null(kvd_family_find("llama", "MistralForCausalLM"));
    const kvd_config c = sizes("llama2.c");
    assert_string_equal(kvd_family_of(&c)->name, "llama");
}

TEST(test_whole_tensors)
{
    kvd_config c = sizes("llama");
    kvd_place p;
    assert_place(&c, KVD_PART_Q, false, "model.layers.11.self_attn.q_proj.weight", 24, 24, 20, 0,
                 24, 24);
    assert_place(&c, KVD_PART_K, false, "model.layers.11.self_attn.k_proj.weight", 12, 12, 20, 0,
                 12, 12);
    assert_place(&c, KVD_PART_DOWN, false, "model.layers.11.mlp.down_proj.weight", 20, 20, 7, 0, 20,
                 20);
    assert_place(&c, KVD_PART_NORM_FINAL, false, "model.norm.weight", 20, 20, 0, 0, 20, 20);
    assert_place(&c, KVD_PART_HEAD, false, "lm_head.weight", 50, 50, 20, 0, 50, 50);
    const kvd_part none[] = {KVD_PART_NORM_Q, KVD_PART_POSITIONS, KVD_PART_PROJECT_IN,
                             KVD_PART_PROJECT_OUT};
    for (size_t i = 0; i < 4; i++)
        assert_false(kvd_part_place(&c, none[i], false, 0, &p));
    assert_false(kvd_part_place(&c, KVD_PART_Q, true, 0, &p));
    assert_int_equal(p.rows, 0);
    c.bias_qkv = true;
    assert_place(&c, KVD_PART_V, true, "model.layers.11.self_attn.v_proj.bias", 12, 12, 0, 0, 12,
                 12);
    assert_false(kvd_part_place(&c, KVD_PART_O, true, 0, &p));
}

TEST(test_stacked_rows)
{
    const kvd_config c = sizes("phi3");
    static const char qkv[] = "model.layers.11.self_attn.qkv_proj.weight";
    static const char gate_up[] = "model.layers.11.mlp.gate_up_proj.weight";
    assert_place(&c, KVD_PART_Q, false, qkv, 48, 24, 20, 0, 24, 24);
    assert_place(&c, KVD_PART_K, false, qkv, 48, 12, 20, 24, 12, 12);
    assert_place(&c, KVD_PART_V, false, qkv, 48, 12, 20, 36, 12, 12);
    assert_place(&c, KVD_PART_GATE, false, gate_up, 14, 7, 20, 0, 7, 7);
    assert_place(&c, KVD_PART_UP, false, gate_up, 14, 7, 20, 7, 7, 7);
}

TEST(test_grouped_rows)
{
    kvd_config c = sizes("falcon");
    c.norm = KVD_NORM_LAYER;
    c.order = KVD_ORDER_PARALLEL;
    c.activation = KVD_GELU;
    c.bias_qkv = true;
    static const char name[] = "transformer.h.11.self_attention.query_key_value.weight";
    assert_place(&c, KVD_PART_Q, false, name, 48, 24, 20, 0, 8, 16);
    assert_place(&c, KVD_PART_K, false, name, 48, 12, 20, 8, 4, 16);
    assert_place(&c, KVD_PART_V, false, name, 48, 12, 20, 12, 4, 16);
    assert_place(&c, KVD_PART_V, true, "transformer.h.11.self_attention.query_key_value.bias", 48,
                 12, 0, 12, 4, 16);
    assert_place(&c, KVD_PART_NORM_FFN, true, "transformer.h.11.ln_mlp.bias", 20, 20, 0, 0, 20, 20);
    c.order = KVD_ORDER_BEFORE;
    assert_place(&c, KVD_PART_NORM_FFN, true, "transformer.h.11.post_attention_layernorm.bias", 20,
                 20, 0, 0, 20, 20);
    c.order = KVD_ORDER_PARALLEL;
    c.shared_norm = true;
    kvd_place p;
    assert_false(kvd_part_place(&c, KVD_PART_NORM_FFN, false, 0, &p));
    assert_false(kvd_part_place(&c, KVD_PART_GATE, false, 0, &p));
    assert_place(&c, KVD_PART_NORM_ATTENTION, false, "transformer.h.11.input_layernorm.weight", 20,
                 20, 0, 0, 20, 20);
}

TEST(test_parts_cover_their_tensor)
{
    static const char *const families[] = {"phi3", "falcon"};
    for (size_t f = 0; f < 2; f++)
        for (int kv = 1; kv <= 6; kv++) {
            if (6 % kv)
                continue;
            kvd_config c = sizes(families[f]);
            c.n_kv_heads = kv;
            int owners[200] = {0};
            size_t stored = 0;
            for (int part = KVD_PART_Q; part <= KVD_PART_V; part++) {
                kvd_place p;
                assert_true(kvd_part_place(&c, (kvd_part)part, false, 0, &p));
                stored = p.stored_rows;
                assert_in_range(stored, 1, 200);
                assert_int_equal(p.rows % p.block, 0);
                for (size_t i = 0; i < p.rows; i++)
                    owners[p.first + i / p.block * p.stride + i % p.block]++;
            }
            for (size_t i = 0; i < 200; i++)
                assert_int_equal(owners[i], i < stored);
        }
}

TEST(test_knows)
{
    kvd_config c = sizes("opt");
    c.norm = KVD_NORM_LAYER;
    c.positions = KVD_POSITIONS_LEARNED;
    c.activation = KVD_RELU;
    c.bias_ffn = true;
    static const char *const yes[] = {"model.decoder.layers.0.fc1.bias",
                                      "model.decoder.layers.11.fc2.weight",
                                      "model.decoder.layers.3.final_layer_norm.bias",
                                      "model.decoder.final_layer_norm.bias",
                                      "model.decoder.embed_positions.weight",
                                      "lm_head.weight"};
    static const char *const no[] = {"model.decoder.layers.12.fc1.bias",
                                     "model.decoder.layers.-1.fc1.bias",
                                     "model.decoder.layers.00.fc1.bias",
                                     "model.decoder.layers.99999999999999999999.fc1.bias",
                                     "model.decoder.layers.0.fc1",
                                     "model.decoder.layers.0.fc1.bias.x",
                                     "model.decoder.layers.0fc1.bias",
                                     "model.decoder.layers.0.self_attn.q_proj.bias",
                                     "model.decoder.layers.0.mlp.gate_proj.weight",
                                     "model.decoder.project_in.weight",
                                     "model.layers.0.fc1.bias",
                                     "fc1.bias",
                                     "",
                                     "rotary_emb.inv_freq"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++)
        if (!kvd_family_knows(&c, yes[i]))
            fail_msg("%s", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++)
        if (kvd_family_knows(&c, no[i]))
            fail_msg("%s", no[i]);
    c.d_embed = 10;
    assert_true(kvd_family_knows(&c, "model.decoder.project_in.weight"));
    const kvd_config llama = sizes("llama");
    assert_true(kvd_family_knows(&llama, "model.layers.3.self_attn.rotary_emb.inv_freq"));
    assert_true(kvd_family_knows(&llama, "model.rotary_emb.inv_freq"));
    assert_false(kvd_family_knows(&llama, "model.layers.12.self_attn.rotary_emb.inv_freq"));
}

/* Reads W_K from one tensor that holds W_Q, W_K and W_V of KV head 0, then of KV head 1, and so on.
 * The rows of W_K are not adjacent in this tensor. */
TEST(test_read)
{
    kvd_err err = {""};
    kvd_checkpoint *c = kvd_checkpoint_open("tests/data/families/falcon-40b", &err);
    if (!c)
        fail_msg("%s", err.msg);
    const kvd_config *k = kvd_checkpoint_config(c);
    const size_t d = (size_t)k->d_head, width = (size_t)k->d_model,
                 group = (size_t)kvd_config_group(k);
    kvd_weight w;
    kvd_tensor t;
    OK(kvd_weight_find(c, KVD_PART_K, false, 2, &w, &err));
    assert_int_equal(w.n, (size_t)k->n_kv_heads * d * width);
    assert_null(kvd_weight_in_place(&w));
    assert_int_equal(
        kvd_checkpoint_tensor(c, "transformer.h.2.self_attention.query_key_value.weight",
                              (size_t)k->n_kv_heads * (group + 2) * d, width, &t, &err),
        0);
    float *all = unit_alloc(t.n * sizeof *all), *part = unit_alloc(w.n * sizeof *part);
    kvd_to_f32(t.dtype, t.data, all, t.n);
    for (size_t first = 0; first < w.n; first += 997) {
        const size_t n = w.n - first < 2 * d * width ? w.n - first : 2 * d * width;
        kvd_weight_read(&w, first, n, part);
        for (size_t i = 0; i < n; i++) {
            const size_t row = (first + i) / width, head = row / d;
            assert_true(
                part[i] ==
                all[(head * (group + 2) * d + group * d + row % d) * width + (first + i) % width]);
        }
    }
    OK(kvd_weight_find(c, KVD_PART_GATE, false, 0, &w, &err));
    assert_int_equal(w.n, 0);
    assert_null(kvd_weight_in_place(&w));
    kvd_checkpoint_close(c);
}

TEST_MAIN(NULL, NULL)
