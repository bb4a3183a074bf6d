/* Writes small Llama checkpoints with random weights, which depend on seed, name and shape. */
#ifndef KVD_TESTS_MAKE_CHECKPOINT_H
#define KVD_TESTS_MAKE_CHECKPOINT_H

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/err.h"
#include "common/half.h"
#include "common/rng.h"

typedef struct {
    int layers, heads, kv_heads, d_head, d_model, ffn, vocab, positions, shards;
    bool tied;
    kvd_dtype dtype;
    uint64_t seed;
    double theta;
    /* RoPE type: "default", "linear" (factor 4), or "llama3" (trained on a quarter of the maximum
     * context) */
    const char *rope;
} made_spec;

#define MADE_SPEC_DEFAULTS                                                                         \
    {                                                                                              \
        .layers = 2, .heads = 4, .kv_heads = 2, .d_head = 16, .d_model = 64, .ffn = 96,            \
        .vocab = 300, .positions = 256, .shards = 1, .tied = true, .dtype = KVD_F32, .seed = 1,    \
        .theta = 10000, .rope = "default"                                                          \
    }

typedef struct {
    char name[96];
    size_t rows, cols; /* size; 0 columns: a vector */
    double scale;      /* factor of a matrix's random weights */
    bool keys;
} made_tensor;

enum { MADE_PER_LAYER = 9, MADE_MAX_LAYERS = 200 };

static inline size_t made_elements(const made_tensor *t)
{
    return t->rows * (t->cols ? t->cols : 1);
}

static inline void made_put(made_tensor *t, const char *name, int rows, int cols, double scale)
{
    *t = (made_tensor){
        .rows = (size_t)rows, .cols = (size_t)cols, .scale = scale / sqrt(cols ? cols : 1)};
    (void)snprintf(t->name, sizeof t->name, "%s", name);
}

/* Lists all tensors of the model, except a tied output head, and returns their number. */
static inline size_t made_list(const made_spec *s, made_tensor *t)
{
    const int q = s->heads * s->d_head, kv = s->kv_heads * s->d_head, d = s->d_model;
    /* scale of the random weights W_O and W_down, whose outputs are added to the residual stream */
    const double back = 1 / sqrt(2.0 * s->layers);
    const struct {
        const char *name;
        int rows, cols;
        double scale;
    } layer[MADE_PER_LAYER] = {
        {"input_layernorm.weight", d, 0, 1},       {"self_attn.q_proj.weight", q, d, 1},
        {"self_attn.k_proj.weight", kv, d, 1},     {"self_attn.v_proj.weight", kv, d, 1},
        {"self_attn.o_proj.weight", d, q, back},   {"post_attention_layernorm.weight", d, 0, 1},
        {"mlp.gate_proj.weight", s->ffn, d, 1},    {"mlp.up_proj.weight", s->ffn, d, 1},
        {"mlp.down_proj.weight", d, s->ffn, back},
    };
    size_t n = 0;
    made_put(&t[n++], "model.embed_tokens.weight", s->vocab, d, 2);
    for (int l = 0; l < s->layers; l++)
        for (int k = 0; k < MADE_PER_LAYER; k++) {
            char name[96];
            (void)snprintf(name, sizeof name, "model.layers.%d.%s", l, layer[k].name);
            made_put(&t[n], name, layer[k].rows, layer[k].cols, layer[k].scale);
            t[n++].keys = k == 2;
        }
    made_put(&t[n++], "model.norm.weight", d, 0, 1);
    if (!s->tied)
        made_put(&t[n++], "lm_head.weight", s->vocab, d, 2);
    return n;
}

static inline void made_fill(const made_spec *s, const made_tensor *t, float *x)
{
    /* FNV-1a hash of the tensor's name, which selects its random numbers */
    uint64_t stream = 14695981039346656037u;
    for (const char *p = t->name; *p; p++)
        stream = (stream ^ (unsigned char)*p) * 1099511628211u;
    kvd_rng rng;
    kvd_rng_seed(&rng, s->seed, stream);
    for (size_t i = 0; i < made_elements(t); i++) {
        double v = kvd_rng_normal(&rng);
        if (t->cols == 0)
            v = 1 + 0.1 * v;
        else
            v *= t->scale * (kvd_rng_below(&rng, 300) == 0 ? 8 : 1);
        if (t->keys && i / t->cols % (size_t)s->d_head == 1)
            v *= 4;
        x[i] = (float)v;
    }
}

static inline int made_write_tensor(const made_spec *s, const made_tensor *t, kvd_dtype dtype,
                                    FILE *f, kvd_err *err)
{
    const size_t n = made_elements(t), width = kvd_dtype_bytes(dtype);
    float *x = malloc(n * sizeof *x);
    void *stored = malloc(n * width);
    int status = -1;
    if (!x || !stored) {
        kvd_no_memory(err, t->name, n * (sizeof *x + width));
        goto done;
    }
    made_fill(s, t, x);
    kvd_from_f32(dtype, x, stored, n);
    if (fwrite(stored, width, n, f) != n) {
        kvd_fail_errno(err, "cannot write '%s'", t->name);
        goto done;
    }
    status = 0;
done:
    free(stored);
    free(x);
    return status;
}

static inline int made_close(FILE *f, const char *path, int status, kvd_err *err)
{
    if (fclose(f) && status == 0)
        return kvd_fail_errno(err, "cannot write '%s'", path);
    return status;
}

static inline int made_safetensors(const char *path, const made_spec *s, const made_tensor *t,
                                   size_t n, kvd_err *err)
{
    static const char *const dtypes[] = {[KVD_F32] = "F32", [KVD_F16] = "F16", [KVD_BF16] = "BF16"};
    char *header = NULL;
    size_t header_len = 0, at = 0;
    FILE *text = open_memstream(&header, &header_len);
    if (!text)
        return kvd_fail_errno(err, "cannot make the header of '%s'", path);
    (void)fprintf(text, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < n; i++) {
        const size_t end = at + made_elements(&t[i]) * kvd_dtype_bytes(s->dtype);
        (void)fprintf(text, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%zu", t[i].name, dtypes[s->dtype],
                      t[i].rows);
        if (t[i].cols)
            (void)fprintf(text, ",%zu", t[i].cols);
        (void)fprintf(text, "],\"data_offsets\":[%zu,%zu]}", at, end);
        at = end;
    }
    (void)fprintf(text, "}");
    for (long pos = ftell(text); pos % 8; pos++)
        (void)fputc(' ', text);
    if (fclose(text)) {
        free(header);
        return kvd_fail_errno(err, "cannot make the header of '%s'", path);
    }
    int status = -1;
    const uint64_t len = header_len;
    FILE *f = fopen(path, "wb");
    if (!f) {
        kvd_fail_errno(err, "cannot write '%s'", path);
    } else {
        if (fwrite(&len, sizeof len, 1, f) != 1 || fwrite(header, 1, header_len, f) != header_len)
            kvd_fail_errno(err, "cannot write '%s'", path);
        else
            status = 0;
        for (size_t i = 0; i < n && status == 0; i++)
            status = made_write_tensor(s, &t[i], s->dtype, f, err);
        status = made_close(f, path, status, err);
    }
    free(header);
    return status;
}

static inline int made_config(const char *path, const made_spec *s, kvd_err *err)
{
    static const char *const dtypes[] = {
        [KVD_F32] = "float32", [KVD_F16] = "float16", [KVD_BF16] = "bfloat16"};
    char rope[256] = "";
    if (strcmp(s->rope, "linear") == 0)
        (void)snprintf(rope, sizeof rope, ", \"factor\": 4.0");
    else if (strcmp(s->rope, "llama3") == 0)
        (void)snprintf(rope, sizeof rope,
                       ", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                       "\"original_max_position_embeddings\": %d",
                       s->positions / 4);
    FILE *f = fopen(path, "w");
    if (!f)
        return kvd_fail_errno(err, "cannot write '%s'", path);
    (void)fprintf(
        f,
        "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\",\n"
        "  \"attention_bias\": false,\n  \"mlp_bias\": false,\n  \"hidden_act\": \"silu\",\n"
        "  \"num_hidden_layers\": %d,\n  \"num_attention_heads\": %d,\n  \"num_key_value_heads\": %d,\n"
        "  \"head_dim\": %d,\n  \"hidden_size\": %d,\n  \"intermediate_size\": %d,\n"
        "  \"vocab_size\": %d,\n  \"max_position_embeddings\": %d,\n  \"rms_norm_eps\": 1e-05,\n"
        "  \"rope_parameters\": {\"rope_type\": \"%s\", \"rope_theta\": %.17g%s},\n"
        "  \"tie_word_embeddings\": %s,\n  \"dtype\": \"%s\",\n  \"bos_token_id\": 0,\n"
        "  \"eos_token_id\": %d\n}\n",
        s->layers, s->heads, s->kv_heads, s->d_head, s->d_model, s->ffn, s->vocab, s->positions,
        s->rope, s->theta, rope, s->tied ? "true" : "false", dtypes[s->dtype], s->vocab > 1);
    return made_close(f, path, ferror(f) ? kvd_fail(err, "cannot write '%s'", path) : 0, err);
}

/* Writes a tokenizer.json with one token per byte, in GPT-2's order. */
static inline int made_tokenizer(const char *path, kvd_err *err)
{
    FILE *f = fopen(path, "w");
    if (!f)
        return kvd_fail_errno(err, "cannot write '%s'", path);
    (void)fprintf(
        f, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [");
    for (int i = 0; i < 2; i++)
        (void)fprintf(
            f,
            "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
            "\"rstrip\": false, \"normalized\": false, \"special\": true}",
            i ? ", " : "", i, i ? "<|eos|>" : "<|bos|>");
    (void)fprintf(
        f,
        "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, "
        "\"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true}, "
        "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
        "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
        "\"byte_fallback\": false, \"ignore_merges\": false, \"vocab\": {\"<|bos|>\": 0, "
        "\"<|eos|>\": 1");
    int id = 2;
    for (unsigned u = 33; u < 324; u++)
        if ((u < 127 || u > 160) && u != 173)
            (void)fprintf(f, ", \"\\u%04x\": %d", u, id++);
    (void)fprintf(f, "}, \"merges\": []}}\n");
    return made_close(f, path, ferror(f) ? kvd_fail(err, "cannot write '%s'", path) : 0, err);
}

static inline int made_index(const char *path, const made_tensor *t, size_t n, const made_spec *s,
                             kvd_err *err)
{
    size_t total = 0;
    FILE *f = fopen(path, "w");
    if (!f)
        return kvd_fail_errno(err, "cannot write '%s'", path);
    for (size_t i = 0; i < n; i++)
        total += made_elements(&t[i]) * kvd_dtype_bytes(s->dtype);
    (void)fprintf(f, "{\"metadata\": {\"total_size\": %zu}, \"weight_map\": {", total);
    for (size_t i = 0; i < n; i++)
        (void)fprintf(f, "%s\n\"%s\": \"model-%05zu-of-%05d.safetensors\"", i ? "," : "", t[i].name,
                      i * (size_t)s->shards / n + 1, s->shards);
    (void)fprintf(f, "\n}}\n");
    return made_close(f, path, ferror(f) ? kvd_fail(err, "cannot write '%s'", path) : 0, err);
}

static inline int made_check(const made_spec *s, kvd_err *err)
{
    const int sizes[] = {s->layers, s->heads, s->kv_heads,  s->d_head, s->d_model,
                         s->ffn,    s->vocab, s->positions, s->shards};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i] < 1 || sizes[i] > 1 << 20)
            return kvd_fail(err, "a size is %d, not within 1 to %d", sizes[i], 1 << 20);
    if (s->layers > MADE_MAX_LAYERS || s->heads % s->kv_heads || s->d_head % 2 ||
        s->shards > s->layers * MADE_PER_LAYER + 2)
        return kvd_fail(err, "sizes that make no model");
    if (strcmp(s->rope, "default") && strcmp(s->rope, "linear") && strcmp(s->rope, "llama3"))
        return kvd_fail(err, "no rope type '%s'", s->rope);
    return 0;
}

/* Writes a checkpoint and, if the vocabulary has at least 258 tokens, a tokenizer. */
static inline int make_checkpoint(const char *folder, const made_spec *s, kvd_err *err)
{
    static made_tensor t[MADE_MAX_LAYERS * MADE_PER_LAYER + 3];
    char path[4096];
    if (made_check(s, err))
        return -1;
    if (mkdir(folder, 0777) && errno != EEXIST)
        return kvd_fail_errno(err, "cannot make '%s'", folder);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    if (made_config(path, s, err))
        return -1;
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    if (s->vocab >= 258 && made_tokenizer(path, err))
        return -1;
    const size_t n = made_list(s, t), shards = (size_t)s->shards;
    if (shards == 1) {
        (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
        return made_safetensors(path, s, t, n, err);
    }
    for (size_t i = 0, first = 0; i < shards; i++) {
        size_t end = first;
        while (end < n && end * shards / n == i)
            end++;
        (void)snprintf(path, sizeof path, "%s/model-%05zu-of-%05zu.safetensors", folder, i + 1,
                       shards);
        if (made_safetensors(path, s, t + first, end - first, err))
            return -1;
        first = end;
    }
    (void)snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    return made_index(path, t, n, s, err);
}

/* Writes a tokenizer file in llama2.c's format: 3 special tokens, 256 bytes, then ASCII characters
 * and pairs of letters. */
static inline int made_llama2c_tokenizer(const char *path, int vocab, kvd_err *err)
{
    static const char *const special[] = {"<unk>", "\n<s>\n", "\n</s>\n"};
    FILE *f = fopen(path, "wb");
    if (!f)
        return kvd_fail_errno(err, "cannot write '%s'", path);
    const int32_t longest = 16;
    (void)fwrite(&longest, sizeof longest, 1, f);
    for (int i = 0; i < vocab; i++) {
        char piece[32];
        const int pair = i - 259 - 95;
        if (i < 3)
            (void)snprintf(piece, sizeof piece, "%s", special[i]);
        else if (i < 259)
            (void)snprintf(piece, sizeof piece, "<0x%02X>", (unsigned)(i - 3) & 0xff);
        else if (pair < 0)
            (void)snprintf(piece, sizeof piece, "%c", ' ' + (i - 259));
        else if (pair < 26 * 26)
            (void)snprintf(piece, sizeof piece, "%c%c", 'a' + pair / 26, 'a' + pair % 26);
        else
            (void)snprintf(piece, sizeof piece, "<unused%d>", pair);
        const int32_t len = (int32_t)strlen(piece);
        const float score = pair < 0 ? 0.0F : (float)-pair;
        (void)fwrite(&score, sizeof score, 1, f);
        (void)fwrite(&len, sizeof len, 1, f);
        (void)fwrite(piece, 1, (size_t)len, f);
    }
    return made_close(f, path, ferror(f) ? kvd_fail(err, "cannot write '%s'", path) : 0, err);
}

/* Writes a model to NAME.bin in llama2.c's format and, if the vocabulary is large enough, a
 * tokenizer to NAME.tok.bin. */
static inline int make_llama2c(const char *path, const made_spec *s, kvd_err *err)
{
    static const char *const order[] = {
        "input_layernorm.weight",  "self_attn.q_proj.weight", "self_attn.k_proj.weight",
        "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
        "mlp.gate_proj.weight",    "mlp.down_proj.weight",    "mlp.up_proj.weight",
    };
    static made_tensor t[MADE_MAX_LAYERS * MADE_PER_LAYER + 3];
    const size_t path_len = strlen(path);
    if (made_check(s, err))
        return -1;
    if (s->d_model != s->heads * s->d_head || s->theta != 10000 || s->dtype != KVD_F32 ||
        s->shards != 1 || strcmp(s->rope, "default"))
        return kvd_fail(
            err, "llama2.c has d_model = heads x d_head, theta 10000, f32, one file, default rope");
    const int32_t header[7] = {s->d_model,  s->ffn,      s->layers,
                               s->heads,    s->kv_heads, s->tied ? s->vocab : -s->vocab,
                               s->positions};
    const size_t n = made_list(s, t);
    FILE *f = fopen(path, "wb");
    if (!f)
        return kvd_fail_errno(err, "cannot write '%s'", path);
    int status = fwrite(header, sizeof header, 1, f) == 1
                     ? 0
                     : kvd_fail_errno(err, "cannot write '%s'", path);
    if (!status)
        status = made_write_tensor(s, &t[0], KVD_F32, f, err);
    for (size_t k = 0; k < MADE_PER_LAYER; k++)
        for (size_t i = 1; i < n && !status; i++) {
            const char *end = strstr(t[i].name, order[k]);
            if (end && strncmp(t[i].name, "model.layers.", 13) == 0)
                status = made_write_tensor(s, &t[i], KVD_F32, f, err);
        }
    if (!status)
        status = made_write_tensor(s, &t[n - (s->tied ? 1 : 2)], KVD_F32, f, err);
    for (int table = 0; table < 2; table++)
        for (int p = 0; p < s->positions; p++)
            for (int i = 0; i < s->d_head / 2 && !status; i++) {
                const double angle = p * pow(s->theta, -2.0 * i / s->d_head);
                const float x = (float)(table ? sin(angle) : cos(angle));
                if (fwrite(&x, sizeof x, 1, f) != 1)
                    status = kvd_fail_errno(err, "cannot write '%s'", path);
            }
    if (!status && !s->tied)
        status = made_write_tensor(s, &t[n - 1], KVD_F32, f, err);
    status = made_close(f, path, status, err);
    if (status || s->vocab < 260)
        return status;
    char tokenizer[4096];
    (void)snprintf(tokenizer, sizeof tokenizer, "%.*s.tok.bin", (int)path_len - 4, path);
    return made_llama2c_tokenizer(tokenizer, s->vocab, err);
}

/* Overwrites element i of a float32 tensor. */
static inline int made_poke(const char *path, const char *tensor, size_t i, float value,
                            kvd_err *err)
{
    uint64_t len = 0;
    unsigned long long at = 0;
    char *header = NULL, quoted[128];
    const char *p = NULL;
    FILE *f = fopen(path, "r+b");
    int good = f && fread(&len, sizeof len, 1, f) == 1 && (header = calloc(len + 1, 1)) &&
               fread(header, 1, len, f) == len;
    (void)snprintf(quoted, sizeof quoted, "\"%s\"", tensor);
    good = good && (p = strstr(header, quoted)) && (p = strstr(p, "data_offsets\":[")) &&
           sscanf(p, "data_offsets\":[%llu", &at) == 1 &&
           !fseek(f, (long)(8 + len + at + 4 * i), SEEK_SET) &&
           fwrite(&value, sizeof value, 1, f) == 1;
    free(header);
    if (f && fclose(f))
        good = 0;
    return good ? 0 : kvd_fail(err, "cannot change '%s' in '%s'", tensor, path);
}

#endif
