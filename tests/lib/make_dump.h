/* Writes small files of Q, K and V, and of second moments. All files have the same W_O and W_V. */
#ifndef KVD_TESTS_MAKE_DUMP_H
#define KVD_TESTS_MAKE_DUMP_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/pairs.h"
#include "common/rng.h"
#include "model/model_info.h"
#include "temp_folder.h"

typedef struct {
    /* header of the file: model, label, sizes and type, set by the caller */
    kvd_activations a;
    uint64_t seed;
    int zero; /* all elements are 0 */
    int nan;  /* one element of K is NaN (layer 1, head 1, token 3, dimension 2) */
    /* token t has the same vectors as token t % distinct; 0: all tokens have different vectors */
    size_t distinct;
} dump_plan;

static float *dump_rows(const dump_plan *p, int what, int layer, int head, size_t n)
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

static int write_dump(dump_plan *p, const char *path, const kvd_run *run, kvd_err *err)
{
    kvd_activations *a = &p->a;
    const kvd_model_info *m = &a->model;
    const size_t d = (size_t)m->d_head, width = (size_t)m->d_model;
    if (kvd_activations_create(a, path, run, false, err))
        return -1;
    for (int l = 0; l < a->n_layers; l++) {
        for (int x = 0; x < KVD_N_X; x++) {
            for (int h = 0;
                 (x < KVD_X_Q_PRE || a->has_pre) && h < kvd_activations_heads(a, (kvd_x)x); h++) {
                float *r = dump_rows(p, x, l, h, a->n_tokens);
                void *out = malloc(a->n_tokens * d * 4);
                if (!out)
                    return kvd_no_memory(err, "rows", a->n_tokens * d * 4);
                for (size_t t = p->distinct; p->distinct && t < a->n_tokens; t++)
                    memcpy(r + t * d, r + t % p->distinct * d, d * sizeof *r);
                if (p->zero)
                    memset(r, 0, a->n_tokens * d * sizeof *r);
                if (p->nan && x == KVD_X_K && l == 1 && h == 1)
                    r[3 * d + 2] = NAN;
                kvd_from_f32(a->dtype, r, out, a->n_tokens * d);
                const int status =
                    kvd_activations_put_rows(a, (kvd_x)x, l, h, 0, a->n_tokens, out, err);
                free(out);
                free(r);
                if (status)
                    return -1;
            }
        }
        dump_plan fixed = *p;
        fixed.seed = 99;
        float *w = malloc((size_t)(m->n_heads + m->n_kv_heads) * d * width * sizeof *w);
        if (!w)
            return kvd_no_memory(err, "weights", 0);
        for (int h = 0; h < m->n_heads + m->n_kv_heads; h++) {
            float *r = dump_rows(&fixed, 40, l, h, width);
            for (size_t i = 0; i < width; i++)
                for (size_t j = 0; j < d; j++)
                    w[((size_t)h * d + j) * width + i] = r[i * d + j];
            free(r);
        }
        const int status =
            kvd_activations_put_weights(a, l, w, w + (size_t)m->n_heads * d * width, err);
        free(w);
        if (status)
            return -1;
    }
    uint32_t *token = calloc(3 * a->n_tokens, sizeof *token);
    if (!token)
        return kvd_no_memory(err, "tokens", 12 * a->n_tokens);
    for (size_t t = 0, first = 0; t < a->n_tokens; t++) {
        const uint32_t sequence = (uint32_t)(t * a->n_sequences / a->n_tokens);
        if (t && sequence != token[a->n_tokens + t - 1])
            first = t;
        token[a->n_tokens + t] = sequence;
        token[2 * a->n_tokens + t] = (uint32_t)(t - first);
    }
    const int status = kvd_activations_put_tokens(a, 0, a->n_tokens, token, token + a->n_tokens,
                                                  token + 2 * a->n_tokens, err);
    free(token);
    return status ? -1 : kvd_activations_finish(a, err);
}

/* Reads Q, K and V from the file `dump`, and writes their second moments to the file `path`. */
static inline int write_moments(const char *dump, const char *path, const kvd_run *run,
                                kvd_err *err)
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
    const kvd_source from = {.dump = &a, .n_tokens = a.n_tokens};
    int status = kvd_moments_alloc(&m, err);
    for (int l = 0; !status && l < a.n_layers; l++) {
        kvd_moments one = m;
        one.n_layers = 1;
        status = kvd_moments_alloc(&one, err) ||
                 kvd_pair_moments(&from, all, l, false, true, &one, err) ||
                 (a.has_pre && kvd_pair_moments(&from, pre, l, true, false, &one, err));
        for (int g = 0; !status && g < KVD_N_G; g++)
            if (one.gram[g])
                memcpy(kvd_moments_at(&m, (kvd_g)g, l, 0), one.gram[g],
                       kvd_moments_count(&one, (kvd_g)g) * sizeof(double));
        kvd_moments_release(&one);
    }
    if (!status)
        status = kvd_h5_create(&f, path, &kvd_schema_moments, run, err) ||
                 kvd_moments_write(&f, &m, err) || kvd_h5_finish(&f, err);
    kvd_moments_release(&m);
    kvd_activations_close(&a);
    return status ? -1 : 0;
}

/* Describes a file of n_tokens tokens: float32, 2 layers, 4 query heads, 2 KV heads, d_head 8,
 * d_model 32. */
static void dump_plan_init(dump_plan *p, size_t n_tokens, uint64_t seed)
{
    *p = (dump_plan){.seed = seed};
    kvd_activations *a = &p->a;
    a->model = (kvd_model_info){.n_layers = 2,
                                .n_heads = 4,
                                .n_kv_heads = 2,
                                .d_head = 8,
                                .d_model = 32,
                                .vocab_size = 100,
                                .max_positions = 1 << 20,
                                .rope_theta = 1e4};
    snprintf(a->model.name, sizeof a->model.name, "synthetic");
    snprintf(a->model.family, sizeof a->model.family, "llama");
    snprintf(a->model.rope_layout, sizeof a->model.rope_layout, "half");
    snprintf(a->model.dtype, sizeof a->model.dtype, "f32");
    snprintf(a->model.hash, sizeof a->model.hash, "xxh3:0");
    snprintf(a->label, sizeof a->label, "text");
    snprintf(a->corpus_hash, sizeof a->corpus_hash, "xxh3:%032llx", (unsigned long long)seed);
    a->n_tokens = n_tokens;
    a->n_sequences = 1;
    a->seq_len = n_tokens;
    a->n_layers = 2;
    a->dtype = KVD_F32;
}

/* Writes and opens a file of 300 tokens' activations, which include Q and K before RoPE. */
static inline int open_made_dump(const kvd_config *c, const char *path, kvd_activations *to,
                                 kvd_err *err)
{
    dump_plan p;
    dump_plan_init(&p, 300, 1);
    kvd_model_info_set(&p.a.model, c, "made up", "xxh3:0", "bf16");
    p.a.n_layers = c->n_layers;
    p.a.has_pre = true;
    return kvd_status(write_dump(&p, path, test_run(), err) || kvd_activations_open(to, path, err));
}

#endif
