#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "forward_case.h"
#include "make_checkpoint.h"
#include "model/checkpoint/filemap.h"
#include "temp_folder.h"

static void write_safetensors(const char *path, const char *header, const void *data, size_t n)
{
    const uint64_t len = strlen(header);
    char *const all = unit_alloc(8 + len + n);
    memcpy(all, &len, 8);
    memcpy(all + 8, header, len);
    memcpy(all + 8 + len, data, n);
    unit_write(path, all, 8 + len + n);
}

/* Writes a float32 tensor with one element for each name; the element of tensor i is base + i. */
static void write_tensors(const char *path, const char *const *names, size_t n, float base)
{
    char header[4096] = "{";
    float *const x = unit_alloc(n * sizeof *x);
    size_t at = 1;
    for (size_t i = 0; i < n; i++) {
        x[i] = base + (float)i;
        at += (size_t)snprintf(
            header + at, sizeof header - at,
            "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}", i ? "," : "",
            names[i], 4 * i, 4 * i + 4);
    }
    (void)snprintf(header + at, sizeof header - at, "}");
    write_safetensors(path, header, x, n * sizeof *x);
}

static void must_refuse(const char *path, const char *message)
{
    kvd_err err = {""};
    kvd_checkpoint *c = kvd_checkpoint_open(path, &err);
    if (c)
        fail_msg("'%s' was opened, wanted '%s'", path, message);
    SAYS(message);
}

static kvd_tensor must_find(const kvd_checkpoint *c, const char *name, size_t rows, size_t cols)
{
    kvd_tensor t = {0};
    kvd_err err = {""};
    OK(kvd_checkpoint_tensor(c, name, rows, cols, &t, &err));
    return t;
}

static void visit_one(const kvd_checkpoint *c, const char *name, size_t rows, size_t cols,
                      void (*visit)(void *ctx, const kvd_tensor *t), void *ctx)
{
    const kvd_tensor t = must_find(c, name, rows, cols);
    if (visit)
        visit(ctx, &t);
}

/* Calls `visit` for every tensor that a model must have. If `visit` is NULL, only checks that they
 * exist. */
static void for_all(const kvd_checkpoint *c, void (*visit)(void *ctx, const kvd_tensor *t),
                    void *ctx)
{
    const kvd_config *k = kvd_checkpoint_config(c);
    const size_t d = (size_t)k->d_model, q = (size_t)(k->n_heads * k->d_head), f = (size_t)k->d_ffn;
    const size_t kv = (size_t)(k->n_kv_heads * k->d_head), v = (size_t)k->vocab_size;
    const struct {
        const char *name;
        size_t rows, cols;
    } layer[] = {
        {"input_layernorm.weight", d, 0},   {"self_attn.q_proj.weight", q, d},
        {"self_attn.k_proj.weight", kv, d}, {"self_attn.v_proj.weight", kv, d},
        {"self_attn.o_proj.weight", d, q},  {"post_attention_layernorm.weight", d, 0},
        {"mlp.gate_proj.weight", f, d},     {"mlp.up_proj.weight", f, d},
        {"mlp.down_proj.weight", d, f},
    };
    visit_one(c, "model.embed_tokens.weight", v, d, visit, ctx);
    visit_one(c, "lm_head.weight", v, d, visit, ctx);
    visit_one(c, "model.norm.weight", d, 0, visit, ctx);
    for (int l = 0; l < k->n_layers; l++)
        for (size_t i = 0; i < sizeof layer / sizeof layer[0]; i++) {
            char name[96];
            (void)snprintf(name, sizeof name, "model.layers.%d.%s", l, layer[i].name);
            visit_one(c, name, layer[i].rows, layer[i].cols, visit, ctx);
        }
}

TEST(test_demo_model)
{
    kvd_err err = {""};
    kvd_tensor t;
    kvd_checkpoint *c = open_checkpoint("data/models/kvdim-6m");
    assert_string_equal(kvd_checkpoint_path(c), "data/models/kvdim-6m");
    assert_string_equal(kvd_checkpoint_dtype(c), kvd_dtype_name(KVD_BF16));
    assert_int_equal(kvd_checkpoint_config(c)->n_layers, 6);
    for_all(c, NULL, NULL);
    assert_ptr_equal(must_find(c, "lm_head.weight", 8192, 256).data,
                     must_find(c, "model.embed_tokens.weight", 8192, 256).data);
    char *tokenizer = kvd_checkpoint_tokenizer_path(c, &err);
    assert_string_equal(tokenizer, "data/models/kvdim-6m/tokenizer.json");
    free(tokenizer);

    FAILS(kvd_checkpoint_tensor(c, "model.norm.weight", 257, 0, &t, &err),
          "'data/models/kvdim-6m/model.safetensors': tensor 'model.norm.weight' has shape "
          "[256], the configuration needs [257]");
    assert_int_equal(kvd_checkpoint_tensor(c, "model.norm.weight", 256, 1, &t, &err), -1);
    SAYS("has shape [256], the configuration needs [256][1]");
    assert_int_equal(
        kvd_checkpoint_tensor(c, "model.layers.0.mlp.up_proj.weight", 256, 704, &t, &err), -1);
    SAYS("has shape [704][256], the configuration needs [256][704]");
    assert_int_equal(
        kvd_checkpoint_tensor(c, "model.layers.0.mlp.up_proj.weight", 704, 0, &t, &err), -1);
    assert_int_equal(
        kvd_checkpoint_tensor(c, "model.layers.6.mlp.up_proj.weight", 704, 256, &t, &err), -1);
    assert_string_equal(
        err.msg, "'data/models/kvdim-6m': tensor 'model.layers.6.mlp.up_proj.weight' is missing");
    kvd_checkpoint_close(NULL);
}

static const char *shared_models(void)
{
    static char path[512];
    const char *shared = getenv("KVDIM_SHARED");
    (void)snprintf(path, sizeof path, "%s/inputs/models", shared ? shared : "../shared");
    return path;
}

TEST(test_real_models)
{
    static const struct {
        const char *name, *family, *tokenizer;
        int layers, heads, kv_heads, d_head, d_model, vocab;
        kvd_dtype dtype;
    } good[] = {
        {"stories260K.bin", "llama2.c", "stories260K.tok512.bin", 5, 8, 4, 8, 64, 512, KVD_F32},
        {"babyllama-tok105.bin", "llama2.c",
         "babyllama-tok105.tokenizer.model' is a SentencePiece model, which is not read", 5, 8, 4,
         16, 128, 105, KVD_F32},
        {"babyllama-tok361.bin", "llama2.c", "NAME.tok*.bin or tokenizer.bin is missing", 5, 8, 4,
         16, 128, 361, KVD_F32},
        {"zhpoem750K.bin", "llama2.c", "zhpoem750K.tok.bin", 5, 6, 6, 16, 96, 2048, KVD_F32},
        {"tinystories656K.safetensors", "llama", "tinystories656K.tokenizer.json", 2, 8, 4, 16, 128,
         2048, KVD_F32},
        {"kvdim-25m", "llama", "kvdim-25m/tokenizer.json", 8, 4, 2, 128, 512, 8192, KVD_BF16},
        {"kvdim-6m/", "llama", "kvdim-6m/tokenizer.json", 6, 4, 2, 64, 256, 8192, KVD_BF16},
    };
    const char *models = shared_models();
    if (access(models, R_OK))
        skip();
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        char path[1024];
        kvd_err err = {""};
        (void)snprintf(path, sizeof path, "%s/%s", models, good[i].name);
        kvd_checkpoint *c = open_checkpoint(path);
        const kvd_config *k = kvd_checkpoint_config(c);
        assert_string_equal(k->family, good[i].family);
        assert_int_equal(k->n_layers, good[i].layers);
        assert_int_equal(k->n_heads, good[i].heads);
        assert_int_equal(k->n_kv_heads, good[i].kv_heads);
        assert_int_equal(k->d_head, good[i].d_head);
        assert_int_equal(k->d_model, good[i].d_model);
        assert_int_equal(k->vocab_size, good[i].vocab);
        assert_string_equal(kvd_checkpoint_dtype(c), kvd_dtype_name(good[i].dtype));
        assert_true(k->tied_head);
        for_all(c, NULL, NULL);
        char *tokenizer = kvd_checkpoint_tokenizer_path(c, &err);
        const char *got = tokenizer ? tokenizer : err.msg;
        if (!strstr(got, good[i].tokenizer) || (tokenizer && access(tokenizer, R_OK)))
            fail_msg("%s: tokenizer '%s'", path, got);
        free(tokenizer);
    }
    static const char *const bad[][2] = {
        {"weak/microlm-pro.bin", "microlm-pro.bin': not a llama2.c file but a TPOE file"},
        {"tiny-llm-attn", "holds neither model.safetensors nor model.safetensors.index.json"},
        {"tiny-llm-attn/q_proj.bin", "not a llama2.c file: "},
        {"stories260K.tok512.bin", "not a llama2.c file: hidden_dim is 0"},
        {"zhpoem750K.tok.bin", "not a llama2.c file: "},
        {"babyllama-tok105.vocab",
         "is no checkpoint: give a folder with config.json and safetensors, a "
         ".safetensors or .gguf file, or a llama2.c .bin file"},
        {"", "config.json': No such file or directory"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char path[1024];
        (void)snprintf(path, sizeof path, "%s/%s", models, bad[i][0]);
        must_refuse(path, bad[i][1]);
    }
}

typedef struct {
    const kvd_checkpoint *other;
    double tolerance;
    size_t n;
} comparison;

static void compare(void *ctx, const kvd_tensor *t)
{
    comparison *c = ctx;
    const kvd_tensor u = must_find(c->other, t->name, t->dims[0], t->rank == 2 ? t->dims[1] : 0);
    float *x = unit_alloc(t->n * sizeof *x), *y = unit_alloc(t->n * sizeof *y);
    kvd_to_f32(t->dtype, t->data, x, t->n);
    kvd_to_f32(u.dtype, u.data, y, u.n);
    for (size_t i = 0; i < t->n; i++)
        if (!(fabs((double)x[i] - (double)y[i]) <= c->tolerance * (fabs((double)y[i]) + 1e-3)))
            fail_msg("%s[%zu]: %g and %g", t->name, i, (double)x[i], (double)y[i]);
    c->n += t->n;
}

TEST(test_formats_agree)
{
    kvd_err err = {""};
    for (int tied = 0; tied < 2; tied++) {
        made_spec s = MADE_SPEC_DEFAULTS;
        s.tied = tied;
        OK(make_checkpoint(temp_file("one"), &s, &err));
        OK(make_llama2c(temp_file("one.bin"), &s, &err));
        s.shards = 3;
        OK(make_checkpoint(temp_file("three"), &s, &err));
        s.dtype = KVD_BF16;
        OK(make_checkpoint(temp_file("bf16"), &s, &err));
        s.dtype = KVD_F16;
        OK(make_checkpoint(temp_file("f16"), &s, &err));

        const struct {
            const char *name;
            kvd_dtype dtype;
            double tolerance;
        } others[] = {{"three", KVD_F32, 0},
                      {"one.bin", KVD_F32, 0},
                      {"bf16", KVD_BF16, 1.0 / 256},
                      {"f16", KVD_F16, 1.0 / 2048}};
        kvd_checkpoint *one = open_checkpoint(temp_file("one"));
        assert_int_equal(kvd_checkpoint_config(one)->tied_head, tied);
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
            kvd_checkpoint *c = open_checkpoint(temp_file(others[i].name));
            assert_string_equal(kvd_checkpoint_dtype(c), kvd_dtype_name(others[i].dtype));
            assert_int_equal(kvd_checkpoint_config(c)->tied_head, tied);
            comparison with = {.other = one, .tolerance = others[i].tolerance};
            for_all(c, compare, &with);
            assert_true(with.n > 50000);
        }
    }
}

static void write_config(const char *path, int tied)
{
    char text[1024];
    (void)snprintf(
        text, sizeof text,
        "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"num_attention_heads\":1,"
        "\"hidden_size\":2,\"intermediate_size\":2,\"vocab_size\":4,\"max_position_embeddings\":8,"
        "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":%s}",
        tied ? "true" : "false");
    unit_write_text(path, text);
}

TEST(test_tied_head)
{
    static const char *const both[] = {"model.embed_tokens.weight", "lm_head.weight"};
    static const char *const norm[] = {"model.norm.weight"};
    const char *file = "tied/model.safetensors";
    assert_int_equal(mkdir(temp_file("tied"), 0777), 0);
    write_config(temp_file("tied/config.json"), 1);
    for (int i = 0; i < 2; i++) {
        write_tensors(temp_file(file), both + i, 1, 5);
        kvd_checkpoint *c = open_checkpoint(temp_file("tied"));
        for (int j = 0; j < 2; j++) {
            float x;
            memcpy(&x, must_find(c, both[j], 1, 0).data, 4);
            assert_true(x == 5);
        }
    }
    write_tensors(temp_file(file), both, 2, 5);
    must_refuse(temp_file("tied"),
                "tied': 'model.embed_tokens.weight' and 'lm_head.weight' differ, but "
                "tie_word_embeddings is true");
    write_tensors(temp_file(file), norm, 1, 0);
    must_refuse(temp_file("tied"),
                "neither 'model.embed_tokens.weight' nor 'lm_head.weight' is there");

    write_config(temp_file("tied/config.json"), 0);
    write_tensors(temp_file(file), both, 2, 5);
    (void)open_checkpoint(temp_file("tied"));
    write_tensors(temp_file(file), both, 1, 0);
    must_refuse(temp_file("tied"),
                "tensor 'lm_head.weight' is missing, and tie_word_embeddings is false");
    write_tensors(temp_file(file), both + 1, 1, 0);
    must_refuse(temp_file("tied"), "tensor 'model.embed_tokens.weight' is missing");
}

TEST(test_foreign_tensors)
{
    static const char *const foreign[] = {"model.layers.0.self_attn.q_proj.bias",
                                          "model.layers.0.self_attn.q_norm.weight",
                                          "model.layers.1.mlp.up_proj.weight",
                                          "model.layers.x.mlp.up_proj.weight",
                                          "model.layers.-0.mlp.up_proj.weight",
                                          "score.weight",
                                          ""};
    assert_int_equal(mkdir(temp_file("foreign"), 0777), 0);
    write_config(temp_file("foreign/config.json"), 1);
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        char want[256];
        (void)snprintf(want, sizeof want, "tensor '%s' is not part of this llama model of 1 layers",
                       foreign[i]);
        write_tensors(temp_file("foreign/model.safetensors"),
                      (const char *const[]){"model.embed_tokens.weight", foreign[i]}, 2, 0);
        must_refuse(temp_file("foreign"), want);
    }
    write_tensors(temp_file("foreign/model.safetensors"),
                  (const char *const[]){"model.embed_tokens.weight",
                                        "model.layers.0.self_attn.rotary_emb.inv_freq"},
                  2, 0);
    (void)open_checkpoint(temp_file("foreign"));
}

#define MAP(entries) "{\"weight_map\":{" entries "}}"
#define EMBED(file)  "\"model.embed_tokens.weight\":\"" file "\""
#define NORM(file)   "\"model.norm.weight\":\"" file "\""

TEST(test_index)
{
    static const char *const embed[] = {"model.embed_tokens.weight"}, *const norm[] = {
                                                                          "model.norm.weight"};
    static const struct {
        /* contents of the index file; expected part of the error message, or NULL if the file is
         * accepted */
        const char *index, *message;
    } cases[] = {
        {MAP(EMBED("a") "," NORM("b")), NULL},
        {"{\"metadata\":{\"total_size\":1},\"weight_map\":{" EMBED("a") "," NORM("b") "}}", NULL},
        {"", "index.json', line 1: "},
        {"[]", "index.json': no object 'weight_map'"},
        {"{\"weight_map\":[]}", "no object 'weight_map'"},
        {MAP(""), "weight_map is empty"},
        {MAP("\"x\":1"), "weight_map: the file of 'x' is not a string"},
        {MAP(EMBED("")),
         "weight_map: '' for tensor 'model.embed_tokens.weight' is not a plain file name"},
        {MAP(EMBED("/etc/passwd")),
         "'/etc/passwd' for tensor 'model.embed_tokens.weight' is not a plain file name"},
        {MAP(EMBED("../index/a")), "is not a plain file name"},
        {MAP(EMBED("..")), "is not a plain file name"},
        {MAP(EMBED("a") "," NORM("b.gone")), "shard 2 of 2: cannot open '"},
        {MAP(EMBED("a") "," NORM("b.gone")), "/index/b.gone': No such file or directory"},
        {MAP(EMBED("a") "," NORM("a")),
         "tensor 'model.norm.weight' is not in 'a', where the index has it"},
        {MAP(EMBED("b") "," NORM("a")),
         "tensor 'model.embed_tokens.weight' is not in 'b', where the index has it, but in 'a'"},
        {MAP(EMBED("a") "," NORM("b") ",\"lm_head.weight\":\"b\""),
         "tensor 'lm_head.weight' is not in 'b', where the index has it"},
        {MAP(EMBED("a") ",\"lm_head.weight\":\"b\""), "tensor 'lm_head.weight' is not in 'b'"},
        {MAP(EMBED("a") "," NORM("both")),
         "tensor 'model.embed_tokens.weight' is in 'a' and in 'both'"},
        {MAP(NORM("both")), "tensor 'model.embed_tokens.weight' of 'both' is not in the index"},
        {MAP(EMBED("a") "," EMBED("b")), "duplicate object key"},
        {MAP(EMBED("a") "," NORM("config.json")), "shard 2 of 2: '"},
    };
    assert_int_equal(mkdir(temp_file("index"), 0777), 0);
    write_config(temp_file("index/config.json"), 1);
    write_tensors(temp_file("index/a"), embed, 1, 0);
    write_tensors(temp_file("index/b"), norm, 1, 1);
    write_tensors(temp_file("index/both"), (const char *const[]){norm[0], embed[0]}, 2, 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unit_write_text(temp_file("index/model.safetensors.index.json"), cases[i].index);
        if (cases[i].message)
            must_refuse(temp_file("index"), cases[i].message);
        else
            (void)open_checkpoint(temp_file("index"));
    }
}

static void expect_tokenizer(const char *path, const char *name, const char *message)
{
    kvd_err err = {""};
    kvd_checkpoint *c = open_checkpoint(path);
    char *tokenizer = kvd_checkpoint_tokenizer_path(c, &err);
    if (name)
        assert_string_equal(tokenizer, temp_file(name));
    else if (tokenizer || !message || !strstr(err.msg, message))
        fail_msg("tokenizer '%s', '%s' lacks '%s'", tokenizer ? tokenizer : "", err.msg, message);
    free(tokenizer);
}

TEST(test_beside)
{
    static const char *const embed[] = {"model.embed_tokens.weight"};
    assert_int_equal(mkdir(temp_file("beside"), 0777), 0);
    write_tensors(temp_file("beside/m.safetensors"), embed, 1, 0);
    must_refuse(temp_file("beside/m.safetensors"),
                "needs its configuration next to it, as NAME.config.json or config.json");
    must_refuse(temp_file("beside"), "cannot open '");
    write_config(temp_file("beside/config.json"), 1);
    expect_tokenizer(temp_file("beside/m.safetensors"), NULL,
                     "NAME.tokenizer.json or tokenizer.json is missing");
    unit_write_text(temp_file("beside/m.config.json"), "{}");
    must_refuse(temp_file("beside/m.safetensors"),
                "m.config.json': neither 'architectures' nor 'model_type'");
    write_config(temp_file("beside/m.config.json"), 1);
    unit_write_text(temp_file("beside/tokenizer.json"), "{}");
    expect_tokenizer(temp_file("beside/m.safetensors"), "beside/tokenizer.json", NULL);
    unit_write_text(temp_file("beside/m.tokenizer.json"), "{}");
    expect_tokenizer(temp_file("beside/m.safetensors"), "beside/m.tokenizer.json", NULL);

    write_tensors(temp_file("beside/model.safetensors"), embed, 1, 0);
    expect_tokenizer(temp_file("beside"), "beside/tokenizer.json", NULL);
    assert_int_equal(unlink(temp_file("beside/tokenizer.json")), 0);
    expect_tokenizer(temp_file("beside"), NULL, "tokenizer.json is missing");
    unit_write_text(temp_file("beside/tokenizer.model"), "");
    expect_tokenizer(temp_file("beside"), NULL,
                     "tokenizer.model' is a SentencePiece model, which is not read");

    kvd_err err = {""};
    made_spec s = MADE_SPEC_DEFAULTS;
    s.vocab = 16; /* The vocabulary is too small for a tokenizer. */
    OK(make_llama2c(temp_file("beside/a[b]*.bin"), &s, &err));
    expect_tokenizer(temp_file("beside/a[b]*.bin"), NULL,
                     "NAME.tok*.bin or tokenizer.bin is missing");
    unit_write_text(temp_file("beside/ab.tok.bin"),
                    ""); /* The file name must not be used as a glob pattern. */
    expect_tokenizer(temp_file("beside/a[b]*.bin"), NULL,
                     "NAME.tok*.bin or tokenizer.bin is missing");
    unit_write_text(temp_file("beside/tokenizer.bin"), "");
    expect_tokenizer(temp_file("beside/a[b]*.bin"), "beside/tokenizer.bin", NULL);
    unit_write_text(temp_file("beside/a[b]*.tok512.bin"), "");
    expect_tokenizer(temp_file("beside/a[b]*.bin"), "beside/a[b]*.tok512.bin", NULL);
    unit_write_text(temp_file("beside/a[b]*.tokenizer.bin"), "");
    expect_tokenizer(temp_file("beside/a[b]*.bin"), NULL, "has two tokenizers next to it, '");

    must_refuse(temp_file("beside/none"), "cannot open '");
    must_refuse(temp_file("beside/none.safetensors"),
                "No such file or directory; models are read from this machine and not downloaded: "
                "give a folder with config.json and safetensors, a .safetensors or .gguf file");
    must_refuse(temp_file("beside/tokenizer.model"),
                "is no checkpoint: give a folder with config.json");
    must_refuse("", "cannot open ''");
    must_refuse("/dev/null", "is no checkpoint");
    unit_write_text(temp_file("beside/empty.bin"), "");
    must_refuse(temp_file("beside/empty.bin"), "empty.bin': not a llama2.c file: 0 bytes");
    assert_int_equal(mkdir(temp_file("beside/x.bin"), 0777), 0);
    must_refuse(temp_file("beside/x.bin"), "cannot open '");
}

TEST(test_relative_path)
{
    kvd_err err = {""};
    char *before = getcwd(NULL, 0);
    made_spec s = MADE_SPEC_DEFAULTS;
    assert_non_null(before);
    assert_int_equal(chdir(temp_folder()), 0);
    OK(make_llama2c("r.bin", &s, &err));
    kvd_checkpoint *c = open_checkpoint("r.bin");
    char *tokenizer = kvd_checkpoint_tokenizer_path(c, &err);
    assert_int_equal(chdir(before), 0);
    free(before);
    assert_string_equal(tokenizer, "r.tok.bin");
    free(tokenizer);
}

TEST(test_unusable_dtype)
{
    static const char header[] =
        "{\"model.embed_tokens.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    kvd_err err = {""};
    kvd_tensor t;
    assert_int_equal(mkdir(temp_file("dtype"), 0777), 0);
    write_config(temp_file("dtype/config.json"), 1);
    write_safetensors(temp_file("dtype/model.safetensors"), header, "\0", 2);
    kvd_checkpoint *c = open_checkpoint(temp_file("dtype"));
    assert_int_equal(kvd_checkpoint_tensor(c, "lm_head.weight", 2, 0, &t, &err), -1);
    SAYS("tensor 'model.embed_tokens.weight' is F8_E4M3, only F32, F16 and BF16");
}

static void *read_pages(void *at)
{
    const kvd_filemap *m = at;
    const volatile char *bytes = m->bytes;
    for (size_t i = 0; i < m->len; i += 4096)
        (void)bytes[i];
    return NULL;
}

/* Truncates a mapped file and reads the missing bytes, which must end this process. If `foreign` is
 * true, the test maps the file with mmap, not with kvdim's function. */
static void read_what_is_gone(bool in_thread, bool foreign)
{
    kvd_filemap other, m, released;
    kvd_err err;
    pthread_t thread;
    if (kvd_filemap_load(&released, temp_file("mapped-0"), &err) ||
        kvd_filemap_load(&other, temp_file("mapped-1"), &err))
        _exit(7);
    kvd_filemap_release(&released);
    if (kvd_filemap_load(&m, temp_file("mapped-2"), &err))
        _exit(7);
    if (foreign) {
        const int fd = open(temp_file("mapped-2"), O_RDONLY);
        m.bytes = mmap(NULL, m.len, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    if (truncate(temp_file("mapped-2"), 5000))
        _exit(7);
    read_pages(&other); /* `other` was not truncated, so reading must not fail. */
    if (!in_thread)
        read_pages(&m);
    else if (pthread_create(&thread, NULL, read_pages, &m) || pthread_join(thread, NULL))
        _exit(7);
    _exit(8);
}

TEST(test_shrunk_file)
{
    static char page[1 << 16];
    for (int way = 0; way < 3; way++) {
        unit_write(temp_file("mapped-0"), page, sizeof page);
        unit_write(temp_file("mapped-1"), page, sizeof page);
        unit_write(temp_file("mapped-2"), page, sizeof page);
        int said[2], status;
        char text[5000] = "", want[1000];
        assert_int_equal(pipe(said), 0);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            const struct rlimit no_core = {0, 0};
            (void)setrlimit(RLIMIT_CORE, &no_core);
            (void)dup2(said[1], STDERR_FILENO);
            (void)signal(SIGBUS, SIG_DFL); /* removes cmocka's handler */
            read_what_is_gone(way == 1, way == 2);
        }
        (void)close(said[1]);
        size_t n = 0;
        for (ssize_t got; (got = read(said[0], text + n, sizeof text - 1 - n)) > 0;)
            n += (size_t)got;
        (void)close(said[0]);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (way == 2) {
            assert_true(WIFSIGNALED(status));
            assert_int_equal(WTERMSIG(status), SIGBUS);
            assert_string_equal(text, "");
            continue;
        }
        (void)snprintf(want, sizeof want,
                       "%s: '%s' can no longer be read: the file became shorter during the run, or "
                       "its disk failed; restore the file and run the command again, with "
                       "--resume if the program has it\n",
                       program_invocation_short_name, temp_file("mapped-2"));
        assert_string_equal(text, want);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 1);
    }
}

TEST_MAIN(NULL, NULL)
