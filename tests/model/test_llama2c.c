#include <stdio.h>
#include <string.h>

#include "model/checkpoint/llama2c.h"
#include "unit.h"

enum { D = 12, F = 10, L = 3, H = 6, KV = 2, V = 7, S = 5, DH = D / H };

/* Makes a file in which float number i has the value i, which shows from where a tensor was
 * read. */
static unsigned char *make_file(const int32_t *header, size_t n_floats, size_t *len)
{
    *len = 28 + 4 * n_floats;
    unsigned char *bytes = unit_alloc(*len);
    memcpy(bytes, header, 28);
    for (size_t i = 0; i < n_floats; i++) {
        const float x = (float)i;
        memcpy(bytes + 28 + 4 * i, &x, 4);
    }
    return bytes;
}

static void check(const void *bytes, const kvd_config *c, const char *name, size_t rows,
                  size_t cols, size_t at)
{
    kvd_tensor t;
    float first, last;
    assert_int_equal(kvd_llama2c_find("m.bin", bytes, c, name, &t), 0);
    assert_string_equal(t.name, name);
    assert_string_equal(t.file, "m.bin");
    assert_int_equal(t.dtype, KVD_F32);
    assert_int_equal(t.rank, cols ? 2 : 1);
    assert_int_equal(t.dims[0], rows);
    assert_int_equal(t.dims[1], cols);
    assert_int_equal(t.n, rows * (cols ? cols : 1));
    memcpy(&first, t.data, 4);
    memcpy(&last, (const char *)t.data + 4 * (t.n - 1), 4);
    if (first != (float)at || last != (float)(at + t.n - 1))
        fail_msg("%s: begins at %g, ends at %g, wanted %zu", name, (double)first, (double)last, at);
}

static void check_all(int tied)
{
    static const struct {
        const char *name;
        size_t rows, cols;
    } layers[] = {
        {"input_layernorm.weight", D, 0},
        {"self_attn.q_proj.weight", D, D},
        {"self_attn.k_proj.weight", KV * DH, D},
        {"self_attn.v_proj.weight", KV * DH, D},
        {"self_attn.o_proj.weight", D, D},
        {"post_attention_layernorm.weight", D, 0},
        {"mlp.gate_proj.weight", F, D},
        {"mlp.down_proj.weight", D, F},
        {"mlp.up_proj.weight", F, D},
    };
    const int32_t header[7] = {D, F, L, H, KV, tied ? V : -V, S};
    const size_t body = V * D + L * (2 * D + 2 * D * D + 2 * KV * DH * D + 3 * F * D) + D + S * DH;
    size_t len, at = 0;
    unsigned char *bytes = make_file(header, body + (tied ? 0 : V * D), &len);
    kvd_config c;
    kvd_err err = {""};
    OK(kvd_llama2c_parse("m.bin", bytes, len, &c, &err));
    assert_string_equal(c.family, "llama2.c");
    assert_int_equal(c.n_layers, L);
    assert_int_equal(c.n_heads, H);
    assert_int_equal(c.n_kv_heads, KV);
    assert_int_equal(c.d_head, DH);
    assert_int_equal(c.d_model, D);
    assert_int_equal(c.d_ffn, F);
    assert_int_equal(c.vocab_size, V);
    assert_int_equal(c.max_positions, S);
    assert_int_equal(c.tied_head, tied);
    assert_int_equal(c.rope_layout, KVD_ROPE_INTERLEAVED);
    assert_true(c.rope_theta == 10000 && c.norm_eps == 1e-5);

    check(bytes, &c, "model.embed_tokens.weight", V, D, at);
    at += V * D;
    for (size_t k = 0; k < sizeof layers / sizeof layers[0]; k++)
        for (size_t l = 0; l < L; l++) {
            char name[96];
            (void)snprintf(name, sizeof name, "model.layers.%zu.%s", l, layers[k].name);
            check(bytes, &c, name, layers[k].rows, layers[k].cols, at);
            at += layers[k].rows * (layers[k].cols ? layers[k].cols : 1);
        }
    check(bytes, &c, "model.norm.weight", D, 0, at);
    at += D + S * DH;
    assert_int_equal(at, body);
    check(bytes, &c, "lm_head.weight", V, D, tied ? 0 : at);

    static const char *const none[] = {"",
                                       "lm_head",
                                       "input_layernorm.weight",
                                       "model.layers.3.mlp.up_proj.weight",
                                       "model.layers.00.mlp.up_proj.weight",
                                       "model.layers.-1.mlp.up_proj.weight",
                                       "model.layers.18446744073709551616.mlp.up_proj.weight",
                                       "model.layers.0",
                                       "model.layers.0.",
                                       "model.layers..mlp.up_proj.weight",
                                       "model.layers.0.model.norm.weight",
                                       "model.layers.0.self_attn.q_proj.bias"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        kvd_tensor t;
        assert_int_equal(kvd_llama2c_find("m.bin", bytes, &c, none[i], &t), 1);
    }

    const long off[] = {-4, 4, -1, 1};
    unsigned char *longer = unit_alloc(len + 4);
    memset(longer + len, 0, 4);
    memcpy(longer, bytes, len);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(kvd_llama2c_parse("m.bin", longer, (size_t)((long)len + off[i]), &c, &err),
                         -1);
        SAYS("'m.bin': not a llama2.c file, or cut short: ");
    }
}

TEST(test_tied)
{
    check_all(1);
}

TEST(test_untied)
{
    check_all(0);
}

TEST(test_refused)
{
    static const struct {
        int32_t header[7];
        const char *message;
    } bad[] = {
        {{0, F, L, H, KV, V, S},
         "'m.bin': not a llama2.c file: dim is 0, not within 1 to 16777216"},
        {{-D, F, L, H, KV, V, S}, "dim is -12, not within"},
        {{D, 16777217, L, H, KV, V, S}, "hidden_dim is 16777217, not within"},
        {{D, F, 0, H, KV, V, S}, "n_layers is 0, not within"},
        {{D, F, L, 0, KV, V, S}, "n_heads is 0, not within"},
        {{D, F, L, H, 0, V, S}, "n_kv_heads is 0, not within"},
        {{D, F, L, H, KV, 0, S}, "vocab_size is 0, not within"},
        {{D, F, L, H, KV, INT32_MIN, S}, "vocab_size is -2147483648, not within"},
        {{D, F, L, H, KV, V, -1}, "seq_len is -1, not within"},
        {{D, F, L, 5, KV, V, S}, "dim 12 is not a multiple of n_heads 5"},
        {{D, F, L, H, 4, V, S}, "n_heads 6 is not a multiple of n_kv_heads 4"},
        {{D, F, L, 12, KV, V, S}, "dim 12 / n_heads 12 is odd, RoPE needs an even head size"},
        {{D, F, L, H, KV, V, S},
         "28 bytes, but dim 12, hidden_dim 10, n_layers 3, n_heads 6, n_kv_heads 2, vocab_size 7, seq_len 5 "
         "need "
         "9668"},
        {{16777216, 16777216, 16777216, 1, 1, 16777216, 16777216}, "need more than any file's"},
        {{1597455941, 3, 4, 4, 1, 256, 1024}, "dim is 1597455941, not within"},
    };
    kvd_config c;
    kvd_err err;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        size_t len;
        unsigned char *bytes = make_file(bad[i].header, 0, &len);
        assert_int_equal(kvd_llama2c_parse("m.bin", bytes, len, &c, &err), -1);
        SAYS(bad[i].message);
        for (size_t cut = 0; cut < 28; cut += 9) {
            assert_int_equal(kvd_llama2c_parse("m.bin", bytes, cut, &c, &err), -1);
            SAYS("its header alone takes 28");
        }
    }

    static const struct {
        const char *magic, *message;
    } others[] = {
        {"24ka\1", "'m.bin': not a llama2.c file but a llama2.c export of version 1 or 2"},
        {"PK\3\4", "not a llama2.c file but a PyTorch file; convert it to safetensors"},
        {"\x80\2}", "not a llama2.c file but a PyTorch file"},
        {"GGUF", "not a llama2.c file but a GGUF file"},
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        unsigned char bytes[28] = {0};
        memcpy(bytes, others[i].magic, strlen(others[i].magic));
        assert_int_equal(kvd_llama2c_parse("m.bin", bytes, sizeof bytes, &c, &err), -1);
        SAYS(others[i].message);
    }
}

TEST(test_missing_head)
{
    const int32_t header[7] = {D, F, L, H, KV, -V, S};
    size_t len;
    kvd_config c;
    kvd_err err = {""};
    unsigned char *bytes = make_file(
        header, V * D + L * (2 * D + 2 * D * D + 2 * KV * DH * D + 3 * F * D) + D + S * DH, &len);
    assert_int_equal(kvd_llama2c_parse("m.bin", bytes, len, &c, &err), -1);
    SAYS("it ends where the head begins that its negative vocab_size announces");
}

TEST_MAIN(NULL, NULL)
