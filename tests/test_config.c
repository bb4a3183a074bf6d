/* model/config: what config.json files say is read; what the forward pass cannot do is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/config.h"

/* The smallest valid configuration, without its braces; what a case adds comes behind it. */
static const char family[] = "\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\"";
static const char sizes[] = "\"num_hidden_layers\":3,\"num_attention_heads\":8,\"hidden_size\":64,"
                            "\"intermediate_size\":100,\"vocab_size\":512,\"max_position_embeddings\":256";
static const char eps[] = "\"rms_norm_eps\":1e-5";

static int parse(const char *text, kvd_config *c, kvd_err *err)
{
    err->msg[0] = '\0';
    /* Exactly its size and without a final zero, so that a read behind the end is seen. */
    const size_t len = strlen(text);
    char *exact = malloc(len ? len : 1);
    assert_non_null(exact);
    memcpy(exact, text, len);
    const int status = kvd_config_parse("c", exact, len, c, err);
    free(exact);
    return status;
}

static int parse_with(const char *more, kvd_config *c, kvd_err *err)
{
    char text[2048];
    (void)snprintf(text, sizeof text, "{%s,%s,%s%s%s}", family, sizes, eps, more[0] ? "," : "", more);
    return parse(text, c, err);
}

/* A case that must be read; says why when it is not. */
static kvd_config accept(const char *more)
{
    kvd_config c;
    kvd_err err;
    if (parse_with(more, &c, &err))
        fail_msg("%s: %s", more, err.msg);
    return c;
}

static void test_defaults(void **state)
{
    (void)state;
    const kvd_config c = accept("");
    assert_string_equal(c.family, "llama");
    assert_int_equal(c.n_layers, 3);
    assert_int_equal(c.n_heads, 8);
    assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.d_head, 8);
    assert_int_equal(c.d_model, 64);
    assert_int_equal(c.d_ffn, 100);
    assert_int_equal(c.vocab_size, 512);
    assert_int_equal(c.max_positions, 256);
    assert_true(c.norm_eps == 1e-5);
    assert_true(c.rope_theta == 10000);
    assert_int_equal(c.rope_layout, KVD_ROPE_HALF);
    assert_int_equal(c.rope_scaling, KVD_ROPE_DEFAULT);
    assert_false(c.tied_head);
    assert_int_equal(c.bos_id, -1);
    assert_int_equal(c.eos_id, -1);
    assert_int_equal(kvd_config_group(&c), 1);
}

static void test_given(void **state)
{
    (void)state;
    kvd_config c =
        accept("\"num_key_value_heads\":2,\"head_dim\":16,\"tie_word_embeddings\":true,"
               "\"bos_token_id\":5,\"eos_token_id\":[7,8],\"rope_theta\":500000,\"hidden_act\":\"silu\","
               "\"attention_bias\":false,\"mlp_bias\":false,\"pretraining_tp\":1,"
               "\"rope_scaling\":null,\"sliding_window\":null,\"layer_types\":[\"full_attention\"],"
               "\"something_new\":{\"a\":[1]}");
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(kvd_config_group(&c), 4);
    assert_int_equal(c.d_head, 16); /* not hidden_size / heads */
    assert_true(c.tied_head);
    assert_int_equal(c.bos_id, 5);
    assert_int_equal(c.eos_id, 7);
    assert_true(c.rope_theta == 500000);

    c = accept("\"head_dim\":null,\"num_key_value_heads\":null,\"bos_token_id\":null,\"eos_token_id\":0");
    assert_int_equal(c.d_head, 8);
    assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.eos_id, 0);
}

static void test_rope(void **state)
{
    (void)state;
    kvd_config c = accept("\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"default\"}");
    assert_true(c.rope_theta == 1e6);
    c = accept("\"rope_theta\":1000000.0,\"rope_parameters\":{\"rope_theta\":1000000,\"type\":\"default\"}");
    assert_true(c.rope_theta == 1e6);
    c = accept("\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}");
    assert_int_equal(c.rope_scaling, KVD_ROPE_LINEAR);
    assert_true(c.rope_factor == 4);
    assert_true(c.rope_theta == 10000);
    /* Llama 3.2 1B as published, and as newer library versions write it. */
    c = accept("\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":32.0,\"high_freq_factor\":4.0,"
               "\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}");
    const kvd_config d =
        accept("\"rope_parameters\":{\"factor\":32.0,\"high_freq_factor\":4.0,\"rope_theta\":500000.0,"
               "\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}");
    assert_int_equal(c.rope_scaling, KVD_ROPE_LLAMA3);
    assert_true(c.rope_factor == 32 && c.rope_low_freq_factor == 1 && c.rope_high_freq_factor == 4);
    assert_int_equal(c.rope_original_positions, 8192);
    assert_true(c.rope_theta == 500000);
    assert_int_equal(d.rope_scaling, c.rope_scaling);
    assert_true(d.rope_factor == c.rope_factor && d.rope_theta == c.rope_theta);
}

/* Additions to a valid configuration that make it one that is refused. */
static void test_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"\"head_dim\":7", "'c': the head size is 7, RoPE needs an even one"},
        {"\"head_dim\":0", "'head_dim' is 0, not within 1 to 16777216"},
        {"\"head_dim\":16777216", "num_attention_heads 8 times head size 16777216 is more than 16777216"},
        {"\"head_dim\":\"8\"", "'head_dim' is not an integer"},
        {"\"num_key_value_heads\":3", "num_attention_heads 8 is not a multiple of num_key_value_heads 3"},
        {"\"num_key_value_heads\":16", "num_attention_heads 8 is not a multiple of num_key_value_heads 16"},
        {"\"num_key_value_heads\":-1", "'num_key_value_heads' is -1, not within"},
        {"\"num_key_value_heads\":2.0", "'num_key_value_heads' is not an integer"},
        {"\"num_key_value_heads\":true", "'num_key_value_heads' is not an integer"},
        {"\"hidden_act\":\"gelu\"", "'hidden_act' is 'gelu', only 'silu' is supported"},
        {"\"hidden_act\":1", "'hidden_act' is 'not a string'"},
        {"\"attention_bias\":1", "'attention_bias' is not true or false"},
        {"\"mlp_bias\":0", "'mlp_bias' is not true or false"},
        {"\"pretraining_tp\":2", "'pretraining_tp' is not 1"},
        {"\"sliding_window\":4096", "'sliding_window' is set, which is not supported"},
        {"\"quantization_config\":{}", "'quantization_config' is set, which is not supported"},
        {"\"partial_rotary_factor\":0.5", "'partial_rotary_factor' is not 1"},
        {"\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         "layer_types[1] is 'sliding_attention', but 'sliding_window' is not set"},
        {"\"tie_word_embeddings\":\"yes\"", "'tie_word_embeddings' is not true or false"},
        {"\"bos_token_id\":512", "'bos_token_id' is 512, not an id of the vocabulary of 512"},
        {"\"eos_token_id\":-1", "'eos_token_id' is -1, not an id"},
        {"\"eos_token_id\":[]", "'eos_token_id' is neither an integer nor a list of integers"},
        {"\"eos_token_id\":[\"a\"]", "'eos_token_id' is neither an integer nor a list of integers"},
        {"\"rope_theta\":0", "the top level: 'rope_theta' is 0, not positive and finite"},
        {"\"rope_theta\":-1e4", "'rope_theta' is -10000, not positive and finite"},
        {"\"rope_theta\":\"1\"", "'rope_theta' is not a number"},
        {"\"rope_theta\":1e999", "real number overflow"},
        {"\"rope_theta\":NaN", "invalid token"},
        {"\"rope_theta\":1,\"rope_parameters\":{\"rope_theta\":2}",
         "rope_theta is 1 in the top level and 2 in rope_parameters"},
        {"\"rope_theta\":1,\"rope_scaling\":{\"rope_theta\":2}",
         "rope_theta is 1 in the top level and 2 in rope_scaling"},
        {"\"rope_scaling\":{\"rope_type\":\"default\"},\"rope_parameters\":{\"rope_theta\":2}",
         "'rope_scaling' and 'rope_parameters' are both there and differ"},
        {"\"rope_scaling\":2", "rope_scaling: not an object"},
        {"\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}",
         "rope_scaling: rope type 'yarn', only default, linear, llama3 and longrope are supported"},
        {"\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}", "rope type 'dynamic', only default"},
        {"\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"llama3\"}",
         "'rope_type' is 'llama3' and 'type' is 'linear'"},
        {"\"rope_scaling\":{\"type\":1}", "the rope type is not a string"},
        {"\"rope_scaling\":{\"type\":\"linear\"}", "rope_scaling: 'factor' is missing"},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}", "'factor' is 0.5, less than 1"},
        {"\"rope_scaling\":{\"factor\":2}", "'factor' is not known for rope type 'default'"},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"attention_factor\":2}",
         "'attention_factor' is not known for rope type 'linear'"},
        {"\"rope_parameters\":{\"rope_theta\":1,\"partial_rotary_factor\":0.25}",
         "rope_parameters: 'partial_rotary_factor' is not 1"},
        {"\"rope_scaling\":{\"type\":\"llama3\",\"factor\":2,\"low_freq_factor\":1,\"high_freq_factor\":4}",
         "'original_max_position_embeddings' is missing"},
        {"\"rope_scaling\":{\"type\":\"llama3\",\"factor\":2,\"low_freq_factor\":4,\"high_freq_factor\":4,"
         "\"original_max_position_embeddings\":8}",
         "'high_freq_factor' 4 is not above 'low_freq_factor' 4"},
        {"\"vocab_size\":512", "duplicate object key"},
        {"\"rope_scaling\":{\"factor\":1,\"factor\":2}", "duplicate object key"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvd_config c;
        kvd_err err;
        const int status = parse_with(bad[i][0], &c, &err);
        if (status == 0 || !strstr(err.msg, bad[i][1]))
            fail_msg("%s: '%s' lacks '%s'", bad[i][0], err.msg, bad[i][1]);
    }
}

static void test_refused_whole(void **state)
{
    (void)state;
    kvd_config c;
    kvd_err err;
    char text[2048];
    static const char *const families[][2] = {
        {"\"a\":1", "neither 'architectures' nor 'model_type' says what model this is"},
        {"\"architectures\":[\"GemmaForCausalLM\"]",
         "architectures is 'GemmaForCausalLM', supported are LlamaForCausalLM"},
        {"\"architectures\":[\"GemmaForCausalLM\"],\"model_type\":\"gemma\"",
         "model_type is 'gemma', supported are llama"},
        {"\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"gemma\"", "model_type is 'gemma'"},
        {"\"architectures\":[\"LlamaForSequenceClassification\"],\"model_type\":\"llama\"",
         "architectures is 'LlamaForSequenceClassification', model_type 'llama' goes with LlamaForCausalLM"},
        {"\"architectures\":[]", "architectures is ''"},
        {"\"architectures\":\"LlamaForCausalLM\"", "'architectures' is not a list"},
        {"\"architectures\":[1]", "architectures[0] is not a string"},
        {"\"model_type\":1", "'model_type' is not a string"},
    };
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        (void)snprintf(text, sizeof text, "{%s,%s,%s}", families[i][0], sizes, eps);
        const int status = parse(text, &c, &err);
        if (status == 0 || !strstr(err.msg, families[i][1]))
            fail_msg("%s: '%s'", families[i][0], err.msg);
    }
    (void)snprintf(text, sizeof text, "{\"model_type\":\"llama\",%s,%s}", sizes, eps);
    assert_int_equal(parse(text, &c, &err), 0);
    (void)snprintf(text, sizeof text, "{\"architectures\":[\"X\",\"LlamaForCausalLM\"],%s,%s}", sizes, eps);
    assert_int_equal(parse(text, &c, &err), 0);

    static const char *const wholes[][2] = {
        {"", "'c', line 1: '[' or '{' expected"},
        {"[]", "'c': not a JSON object"},
        {"{\"model_type\":\"llama\"}", "'num_hidden_layers' is missing"},
        {"{\n\"a\":}", "'c', line 2: unexpected token near '}'"},
    };
    for (size_t i = 0; i < sizeof wholes / sizeof wholes[0]; i++) {
        const int status = parse(wholes[i][0], &c, &err);
        if (status == 0 || !strstr(err.msg, wholes[i][1]))
            fail_msg("%s: '%s'", wholes[i][0], err.msg);
    }
}

/* Every size that must be there: left out, zero, negative, huge, of another type. */
static void test_sizes(void **state)
{
    (void)state;
    static const char *const keys[] = {"num_hidden_layers", "num_attention_heads", "hidden_size",
                                       "intermediate_size", "vocab_size",          "max_position_embeddings"};
    static const char *const values[][2] = {{"null", "is missing"},
                                            {"0", "is 0, not within 1 to 16777216"},
                                            {"-8", "is -8, not within 1 to 16777216"},
                                            {"16777217", "is 16777217, not within 1 to 16777216"},
                                            {"9223372036854775807", "is 9223372036854775807, not within"},
                                            {"8.0", "is not an integer"},
                                            {"\"8\"", "is not an integer"},
                                            {"[8]", "is not an integer"}};
    for (size_t k = 0; k < 6; k++)
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            char text[2048], want[128];
            kvd_config c;
            kvd_err err;
            int at = snprintf(text, sizeof text, "{%s,%s", family, eps);
            for (size_t i = 0; i < 6; i++)
                at += snprintf(text + at, sizeof text - (size_t)at, ",\"%s\":%s", keys[i],
                               i == k ? values[v][0] : "8");
            (void)snprintf(text + at, sizeof text - (size_t)at, "}");
            (void)snprintf(want, sizeof want, "'c': '%s' %s", keys[k], values[v][1]);
            assert_int_equal(parse(text, &c, &err), -1);
            if (!strstr(err.msg, want))
                fail_msg("'%s' lacks '%s'", err.msg, want);
        }
    kvd_config c;
    kvd_err err;
    char text[2048];
    (void)snprintf(text, sizeof text,
                   "{%s,%s,\"num_hidden_layers\":1,\"num_attention_heads\":3,\"hidden_size\":8,"
                   "\"intermediate_size\":8,\"vocab_size\":8,\"max_position_embeddings\":8}",
                   family, eps);
    assert_int_equal(parse(text, &c, &err), -1);
    assert_non_null(strstr(err.msg, "hidden_size 8 is not a multiple of num_attention_heads 3"));
    static const char *const norms[][2] = {
        {"\"a\":1", "'rms_norm_eps' is missing"},
        {"\"rms_norm_eps\":0", "'rms_norm_eps' is 0, not positive"},
        {"\"rms_norm_eps\":-1e-5", "'rms_norm_eps' is -1e-05, not positive"},
        {"\"rms_norm_eps\":\"1e-5\"", "'rms_norm_eps' is not a number"}};
    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(text, sizeof text, "{%s,%s,%s}", family, sizes, norms[i][0]);
        assert_int_equal(parse(text, &c, &err), -1);
        assert_non_null(strstr(err.msg, norms[i][1]));
    }
}

static void test_demo_file(void **state)
{
    (void)state;
    kvd_config c;
    kvd_err err = {""};
    assert_int_equal(kvd_config_read("data/models/kvdim-6m/config.json", &c, &err), 0);
    assert_int_equal(c.n_layers, 6);
    assert_int_equal(c.n_heads, 4);
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.d_head, 64);
    assert_int_equal(c.d_model, 256);
    assert_int_equal(c.d_ffn, 704);
    assert_int_equal(c.vocab_size, 8192);
    assert_int_equal(c.max_positions, 1024);
    assert_true(c.tied_head);
    assert_int_equal(c.bos_id, 0);
    assert_int_equal(c.eos_id, 1);
    assert_int_equal(kvd_config_read("data/models/none.json", &c, &err), -1);
    assert_string_equal(err.msg, "cannot open 'data/models/none.json': No such file or directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),  cmocka_unit_test(test_given),         cmocka_unit_test(test_rope),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_refused_whole), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_demo_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
