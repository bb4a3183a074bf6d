/*
 * tool_synthetic activations|moments OUT.h5 TOKENS SEED [KEY=VALUE]...: small files for tests of programs.
 *
 * Two layers, four query heads, two KV heads, d_head 8, d_model 32 unless told otherwise. Rows of a head are
 * normal numbers mixed by a matrix that belongs to layer and head, so two seeds give two texts of one model.
 *   hash=H model hash   corpus=C corpus hash (default from the seed)   label=L   dtype=f32|f16|bf16   pre=1
 *   heads=N  kv=N  d=N  nan=1 (one NaN in k, layer 1, head 1, token 3, dim 2)
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/pairs.h"
#include "common/rng.h"

typedef struct {
    kvd_activations a;
    uint64_t seed;
    int nan;
} plan;

static float *rows(const plan *p, int what, int layer, int head, size_t n)
{
    const size_t d = (size_t)p->a.model.d_head;
    float *x = malloc(n * d * sizeof *x), *mix = malloc(d * d * sizeof *mix);
    double *z = malloc(d * sizeof *z);
    kvd_rng model, text;
    if (!x || !mix || !z)
        abort();
    kvd_rng_seed(&model, 7, (uint64_t)((what * 64 + layer) * 64 + head));
    kvd_rng_seed(&text, p->seed, (uint64_t)((what * 64 + layer) * 64 + head));
    for (size_t i = 0; i < d * d; i++)
        mix[i] = (float)(kvd_rng_normal(&model) * pow(0.6, (double)(i / d)));
    for (size_t t = 0; t < n; t++) {
        for (size_t i = 0; i < d; i++)
            z[i] = kvd_rng_normal(&text);
        for (size_t j = 0; j < d; j++) {
            double sum = 0;
            for (size_t i = 0; i < d; i++)
                sum += z[i] * mix[i * d + j];
            x[t * d + j] = (float)sum;
        }
    }
    free(mix);
    free(z);
    return x;
}

static int write_dump(plan *p, const char *path, const kvd_run *run, kvd_err *err)
{
    kvd_activations *a = &p->a;
    const kvd_model_info *m = &a->model;
    const size_t d = (size_t)m->d_head, width = (size_t)m->d_model;
    if (kvd_activations_create(a, path, run, false, err))
        return -1;
    for (int l = 0; l < a->n_layers; l++) {
        for (int x = 0; x < KVD_N_X; x++) {
            for (int h = 0; (x < KVD_X_Q_PRE || a->has_pre) && h < kvd_activations_heads(a, (kvd_x)x); h++) {
                float *r = rows(p, x, l, h, a->n_tokens);
                void *out = malloc(a->n_tokens * d * 4);
                if (!out)
                    return kvd_no_memory(err, "rows", a->n_tokens * d * 4);
                if (p->nan && x == KVD_X_K && l == 1 && h == 1)
                    r[3 * d + 2] = NAN;
                kvd_from_f32(a->dtype, r, out, a->n_tokens * d);
                const int status = kvd_activations_put_rows(a, (kvd_x)x, l, h, 0, a->n_tokens, out, err);
                free(out);
                free(r);
                if (status)
                    return -1;
            }
        }
        /* weights do not depend on the text */
        plan fixed = *p;
        fixed.seed = 99;
        float *w = malloc((size_t)(m->n_heads + m->n_kv_heads) * d * width * sizeof *w);
        if (!w)
            return kvd_no_memory(err, "weights", 0);
        for (int h = 0; h < m->n_heads + m->n_kv_heads; h++) {
            float *r = rows(&fixed, 40, l, h, width); /* [d_model][d_head], wanted transposed */
            for (size_t i = 0; i < width; i++)
                for (size_t j = 0; j < d; j++)
                    w[((size_t)h * d + j) * width + i] = r[i * d + j];
            free(r);
        }
        const int status = kvd_activations_put_weights(a, l, w, w + (size_t)m->n_heads * d * width, err);
        free(w);
        if (status)
            return -1;
    }
    uint32_t *token = calloc(3 * a->n_tokens, sizeof *token);
    if (!token)
        return kvd_no_memory(err, "tokens", 12 * a->n_tokens);
    for (size_t t = 0; t < a->n_tokens; t++)
        token[2 * a->n_tokens + t] = (uint32_t)t;
    const int status = kvd_activations_put_tokens(a, 0, a->n_tokens, token, token + a->n_tokens,
                                                  token + 2 * a->n_tokens, err);
    free(token);
    return status ? -1 : kvd_activations_finish(a, err);
}

/* The moments of the dump that was just written, through the same sums as kvdim-spectrum. */
static int write_moments(const char *dump, const char *path, const kvd_run *run, kvd_err *err)
{
    kvd_activations a;
    bool all[KVD_N_PAIRS], pre[KVD_N_PAIRS] = {[KVD_PAIR_QK] = true};
    kvd_h5 f;
    for (int p = 0; p < KVD_N_PAIRS; p++)
        all[p] = true;
    if (kvd_activations_open(&a, dump, err))
        return -1;
    kvd_moments m = {.model = a.model,
                     .n_tokens = a.n_tokens,
                     .n_sequences = a.n_sequences,
                     .seq_len = a.seq_len,
                     .n_layers = a.n_layers,
                     .has_pre = a.has_pre};
    memcpy(m.label, a.label, sizeof m.label);
    memcpy(m.corpus_hash, a.corpus_hash, sizeof m.corpus_hash);
    int status = kvd_moments_alloc(&m, err);
    for (int l = 0; !status && l < a.n_layers; l++) {
        kvd_moments one = m;
        one.n_layers = 1;
        status = kvd_moments_alloc(&one, err) ||
                 kvd_pair_moments(&a, all, l, a.n_tokens, false, true, &one, err) ||
                 (a.has_pre && kvd_pair_moments(&a, pre, l, a.n_tokens, true, false, &one, err));
        for (int g = 0; !status && g < KVD_N_G; g++)
            if (one.gram[g])
                memcpy(kvd_moments_at(&m, (kvd_g)g, l, 0), one.gram[g],
                       kvd_moments_count(&one, (kvd_g)g) * sizeof(double));
        kvd_moments_release(&one);
    }
    if (!status)
        status = kvd_h5_create(&f, path, &kvd_schema_moments, run, err) || kvd_moments_write(&f, &m, err) ||
                 kvd_h5_finish(&f, err);
    kvd_moments_release(&m);
    kvd_activations_close(&a);
    return status ? -1 : 0;
}

static const char *value(int argc, char **argv, const char *key, const char *otherwise)
{
    for (int i = 5; i < argc; i++)
        if (!strncmp(argv[i], key, strlen(key)) && argv[i][strlen(key)] == '=')
            return argv[i] + strlen(key) + 1;
    return otherwise;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    kvd_err err = {""};
    kvd_run run = {0};
    kvd_common_options common = {.seed = 1, .threads = 1};
    const char *path = argv[2], *dtype = value(argc, argv, "dtype", "f32");
    const bool moments = !strcmp(argv[1], "moments");
    plan p = {.seed = strtoull(argv[4], NULL, 10), .nan = atoi(value(argc, argv, "nan", "0"))};
    kvd_activations *a = &p.a;
    a->model = (kvd_model_info){.n_layers = 2,
                                .n_heads = atoi(value(argc, argv, "heads", "4")),
                                .n_kv_heads = atoi(value(argc, argv, "kv", "2")),
                                .d_head = atoi(value(argc, argv, "d", "8")),
                                .d_model = 32,
                                .vocab_size = 100,
                                .max_positions = 1 << 20,
                                .rope_theta = 1e4};
    snprintf(a->model.name, sizeof a->model.name, "synthetic");
    snprintf(a->model.family, sizeof a->model.family, "llama");
    snprintf(a->model.rope_layout, sizeof a->model.rope_layout, "half");
    snprintf(a->model.dtype, sizeof a->model.dtype, "f32");
    snprintf(a->model.hash, sizeof a->model.hash, "%s", value(argc, argv, "hash", "xxh3:0"));
    snprintf(a->label, sizeof a->label, "%s", value(argc, argv, "label", "text"));
    char corpus[40];
    snprintf(corpus, sizeof corpus, "xxh3:%032llx", (unsigned long long)p.seed);
    snprintf(a->corpus_hash, sizeof a->corpus_hash, "%s", value(argc, argv, "corpus", corpus));
    a->n_tokens = strtoull(argv[3], NULL, 10);
    a->n_sequences = 1;
    a->seq_len = a->n_tokens;
    a->n_layers = 2;
    a->dtype = !strcmp(dtype, "f16") ? KVD_F16 : !strcmp(dtype, "bf16") ? KVD_BF16 : KVD_F32;
    a->has_pre = atoi(value(argc, argv, "pre", "0"));

    char dump[4096];
    snprintf(dump, sizeof dump, "%s%s", path, moments ? ".dump" : "");
    int status = kvd_run_start(&run, "tool_synthetic", argc, argv, &common, &err);
    if (!status)
        status = write_dump(&p, dump, &run, &err);
    if (!status && moments)
        status = write_moments(dump, path, &run, &err);
    if (moments)
        remove(dump);
    kvd_run_release(&run);
    return kvd_run_exit("tool_synthetic", status, &err);
}
