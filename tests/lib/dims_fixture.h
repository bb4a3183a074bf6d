/* A small model's shape, random rotation matrices, and random Q, K and V. */
#ifndef DIMS_FIXTURE_H
#define DIMS_FIXTURE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/linalg.h"
#include "common/rng.h"
#include "formats/spectrum.h"
#include "methods/dims/dims.h"
#include "model/model_info.h"
#include "model/pass/attention.h"
#include "model/text/corpus.h"

static inline kvd_config fixture_config(int n_layers, int n_heads, int n_kv_heads, int d_head)
{
    return (kvd_config){.family = "llama",
                        .n_layers = n_layers,
                        .n_heads = n_heads,
                        .n_kv_heads = n_kv_heads,
                        .d_head = d_head,
                        .d_model = 32,
                        .d_ffn = 48,
                        .vocab_size = 100,
                        .max_positions = 512,
                        .norm_eps = 1e-5,
                        .rope_theta = 1e4,
                        .bos_id = -1,
                        .eos_id = -1};
}

/* Fills basis [n][d][d] with random orthogonal matrices. */
static inline int fixture_orthogonal(kvd_rng *r, double *basis, size_t n, size_t d)
{
    double *x = malloc(2 * d * d * sizeof *x), *sigma = malloc(d * sizeof *sigma);
    kvd_err err;
    int status = x && sigma ? 0 : -1;
    for (size_t m = 0; !status && m < n; m++) {
        for (size_t i = 0; i < 2 * d * d; i++)
            x[i] = kvd_rng_normal(r);
        status = kvd_svd_right(x, 2 * d, d, sigma, basis + m * d * d, &err);
    }
    free(x);
    free(sigma);
    return status;
}

/* Takes orthogonal matrices U in left [n][d][d]. Writes U diag(s) to left and U diag(1/s) to right,
 * with random s in 0.5 .. 1.5. */
static inline void fixture_biorthogonal(kvd_rng *r, double *left, double *right, size_t n, size_t d)
{
    for (size_t m = 0; m < n; m++)
        for (size_t j = 0; j < d; j++) {
            const double s = 0.5 + kvd_rng_uniform(r);
            for (size_t i = 0; i < d; i++) {
                right[(m * d + i) * d + j] = left[(m * d + i) * d + j] / s;
                left[(m * d + i) * d + j] *= s;
            }
        }
}

static inline int fixture_spectrum(kvd_spectrum *s, const kvd_config *c, uint64_t seed,
                                   kvd_err *err)
{
    static const kvd_pair pairs[] = {KVD_PAIR_QK,  KVD_PAIR_VW, KVD_PAIR_WV, KVD_PAIR_BQK,
                                     KVD_PAIR_BVW, KVD_PAIR_K,  KVD_PAIR_V};
    kvd_rng r;
    kvd_rng_seed(&r, seed, 0);
    memset(s, 0, sizeof *s);
    kvd_model_info_set(&s->model, c, "fixture", "xxh3:0", "f32");
    strcpy(s->label, "made up");
    strcpy(s->method, "svd");
    strcpy(s->rope, "after");
    s->pairing = KVD_SHARED;
    s->n_layers = c->n_layers;
    s->n_tokens = 100;
    const size_t n = (size_t)c->n_layers * (size_t)c->n_kv_heads, d = (size_t)c->d_head;
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++) {
        if (kvd_spectrum_alloc(s, pairs[p], err))
            return -1;
        kvd_pair_spectrum *const x = &s->pair[pairs[p]];
        if (fixture_orthogonal(&r, x->R, n, d))
            return -1;
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < d; j++)
                x->sigma[i * d + j] = exp(-(1 + 0.1 * (double)i) * (double)j / (double)d);
        if (x->right)
            fixture_biorthogonal(&r, x->R, x->right, n, d);
    }
    return 0;
}

/* Returns the number of dimensions that Q and K (side 0) or V (side 1) of a KV head keep. The index
 * i counts the KV heads of all layers. */
typedef int (*fixture_kept)(const kvd_config *c, int i, int side);

static inline int fixture_uneven(const kvd_config *c, int i, int side)
{
    return c->d_head * (3 + (i * 5 + 3 * side + 1) % 6) / 8 - i % 3;
}

/* Makes projections; each KV head keeps as many dimensions as the function `kept` returns. The
 * caller must call kvd_dims_release, also after an error. */
static inline int fixture_dims(kvd_dims *d, const kvd_spectrum *s, const kvd_config *c,
                               const kvd_dims_method *m, fixture_kept kept, kvd_err *err)
{
    kvd_widths w = {0};
    int status = kvd_widths_alloc(&w, c->n_layers, c->n_kv_heads, c->d_head, err);
    for (int i = 0; !status && i < c->n_layers * c->n_kv_heads; i++)
        for (int side = 0; side < 2; side++)
            w.kept[side][i] = kept(c, i, side);
    status = status || kvd_dims_build(d, m, s, &w, err);
    kvd_widths_release(&w);
    return status ? -1 : 0;
}

/* random Q, K and V of one layer */
typedef struct {
    kvd_attention_in in;
    size_t offset[8];
    float *q, *k, *v;
} fixture_qkv;

static inline void fixture_qkv_make(fixture_qkv *x, const kvd_config *c, int layer,
                                    const size_t *length, size_t n, uint64_t seed)
{
    kvd_rng r;
    kvd_rng_seed(&r, seed, 1);
    x->offset[0] = 0;
    for (size_t i = 0; i < n; i++)
        x->offset[i + 1] = x->offset[i] + length[i];
    const size_t tokens = x->offset[n], d = (size_t)c->d_head;
    const size_t nq = tokens * (size_t)c->n_heads * d, nk = tokens * (size_t)c->n_kv_heads * d;
    x->q = malloc(nq * sizeof(float));
    x->k = malloc(nk * sizeof(float));
    x->v = malloc(nk * sizeof(float));
    for (size_t i = 0; i < nq; i++)
        x->q[i] = (float)(2 * kvd_rng_normal(&r));
    for (size_t i = 0; i < nk; i++) {
        x->k[i] = (float)(2 * kvd_rng_normal(&r));
        x->v[i] = (float)kvd_rng_normal(&r);
    }
    x->in = (kvd_attention_in){.config = c,
                               .layer = layer,
                               .n_sequences = n,
                               .offset = x->offset,
                               .n_tokens = tokens,
                               .q = x->q,
                               .k = x->k,
                               .v = x->v};
}

static inline void fixture_drop(fixture_qkv *x)
{
    free(x->q);
    free(x->k);
    free(x->v);
}

/* Reads the first n token ids of a text, by the tokenizer of a checkpoint. */
static inline int fixture_ids(const kvd_checkpoint *c, uint32_t *id, size_t n, kvd_err *err)
{
    const char *const text[] = {"data/texts/stories.txt"};
    const kvd_corpus_spec spec = {.text = text,
                                  .n_text = 1,
                                  .max_tokens = n,
                                  .seq_len = n,
                                  .vocab_size = (size_t)kvd_checkpoint_config(c)->vocab_size};
    char *const path = kvd_checkpoint_tokenizer_path(c, err);
    kvd_tokenizer *const tok = path ? kvd_tokenizer_open(path, spec.vocab_size, err) : NULL;
    kvd_corpus *const corpus = tok ? kvd_corpus_open(&spec, tok, err) : NULL;
    const int status = corpus ? kvd_corpus_read(corpus, 0, 1, id, err) : -1;
    kvd_corpus_close(corpus);
    kvd_tokenizer_free(tok);
    free(path);
    return status;
}

#endif
