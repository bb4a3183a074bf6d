#include "formats/spectrum.h"

#include <assert.h>
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/files/fields.h"
#include "common/linalg.h"
#include "common/stats.h"

const kvd_schema kvd_schema_spectrum = {"spectrum", 1,
                                        "Singular values and bases per pair, layer and head"};

const char *const kvd_pair_name[KVD_N_PAIRS] = {"qk", "vw",  "q",   "k",   "v",
                                                "wv", "bqk", "bvw", "fqk", "fvw"};
const char *const kvd_pairing_name[2] = {"shared", "per-query"};

static const char *const pair_title[KVD_N_PAIRS] = {
    "queries stacked on keys",
    "values stacked on rows of W_O",
    "queries",
    "keys",
    "values",
    "columns of W_V",
    "balanced Q and K",
    "balanced V and W_O",
    "Q and gradients with respect to Q",
    "attention outputs and gradients with respect to them"};

int kvd_pair_find(const char *name)
{
    for (int i = 0; i < KVD_N_PAIRS; i++)
        if (!strcmp(name, kvd_pair_name[i]))
            return i;
    return -1;
}

int kvd_pair_attributes(kvd_h5 *f, kvd_pair pair[2], kvd_err *err)
{
    static const char *const name[2] = {"pair_qk", "pair_v"};
    for (int side = 0; side < 2; side++) {
        char text[16];
        if (kvd_field_text(f, "/", name[side], text, sizeof text, err))
            return -1;
        const int found = kvd_pair_find(text);
        if (found < 0)
            return kvd_fail(err, "'%s': attribute %s is '%s', which is no pair", f->path,
                            name[side], text);
        const bool of_v = found == KVD_PAIR_VW || found == KVD_PAIR_V || found == KVD_PAIR_WV ||
                          found == KVD_PAIR_BVW || found == KVD_PAIR_FVW;
        if (of_v != (side == 1))
            return kvd_fail(err, "'%s': attribute %s is '%s', a pair of the other side", f->path,
                            name[side], text);
        pair[side] = (kvd_pair)found;
    }
    return 0;
}

bool kvd_pair_balanced(kvd_pair pair)
{
    return pair == KVD_PAIR_BQK || pair == KVD_PAIR_BVW || kvd_pair_fisher(pair);
}

bool kvd_pair_fisher(kvd_pair pair)
{
    return pair == KVD_PAIR_FQK || pair == KVD_PAIR_FVW;
}

int kvd_pair_heads(const kvd_model_info *m, kvd_pair pair, kvd_pairing pairing)
{
    const bool queries = pair == KVD_PAIR_QK || pair == KVD_PAIR_Q || pair == KVD_PAIR_VW;
    return pairing == KVD_PER_QUERY && queries ? m->n_heads : m->n_kv_heads;
}

/* Computes the number of bytes of all rotation matrices. Fails on overflow, because sizes may come
 * from a damaged file. */
static int basis_bytes(const kvd_spectrum *s, int n_h, size_t *bytes, kvd_err *err)
{
    const size_t d = (size_t)s->model.d_head;
    if (__builtin_mul_overflow((size_t)s->n_layers, (size_t)n_h, bytes) ||
        __builtin_mul_overflow(*bytes, d, bytes) || __builtin_mul_overflow(*bytes, d, bytes) ||
        __builtin_mul_overflow(*bytes, sizeof(double), bytes))
        return kvd_fail(err, "bases of %d layers, %d heads, d_head %d are too large", s->n_layers,
                        n_h, s->model.d_head);
    return 0;
}

int kvd_spectrum_alloc(kvd_spectrum *s, kvd_pair pair, kvd_err *err)
{
    kvd_pair_spectrum *x = &s->pair[pair];
    const int n_h = kvd_pair_heads(&s->model, pair, s->pairing);
    size_t bytes;
    assert(!x->present && s->n_layers > 0);
    if (basis_bytes(s, n_h, &bytes, err))
        return -1;
    const bool two = kvd_pair_balanced(pair);
    x->n_h = n_h;
    x->sigma = calloc((size_t)s->n_layers * (size_t)n_h, (size_t)s->model.d_head * sizeof(double));
    x->R = calloc(1, bytes);
    x->right = two ? calloc(1, bytes) : NULL;
    x->present = true;
    if (!x->sigma || !x->R || (two && !x->right))
        return kvd_no_memory(err, "the bases of a pair", bytes);
    return 0;
}

static size_t head_index(const kvd_spectrum *s, kvd_pair pair, int layer, int h)
{
    const kvd_pair_spectrum *x = &s->pair[pair];
    assert(x->present && layer >= 0 && layer < s->n_layers && h >= 0 && h < x->n_h);
    return (size_t)layer * (size_t)x->n_h + (size_t)h;
}

double *kvd_spectrum_sigma(const kvd_spectrum *s, kvd_pair pair, int layer, int h)
{
    return s->pair[pair].sigma + head_index(s, pair, layer, h) * (size_t)s->model.d_head;
}

double *kvd_spectrum_R(const kvd_spectrum *s, kvd_pair pair, int layer, int h)
{
    const size_t d = (size_t)s->model.d_head;
    return s->pair[pair].R + head_index(s, pair, layer, h) * d * d;
}

double *kvd_spectrum_right(const kvd_spectrum *s, kvd_pair pair, int layer, int h)
{
    const size_t d = (size_t)s->model.d_head;
    assert(s->pair[pair].right);
    return s->pair[pair].right + head_index(s, pair, layer, h) * d * d;
}

void kvd_spectrum_drop_bases(kvd_spectrum *s)
{
    for (int i = 0; i < KVD_N_PAIRS; i++) {
        free(s->pair[i].R);
        free(s->pair[i].right);
        s->pair[i].R = s->pair[i].right = NULL;
    }
}

void kvd_spectrum_release(kvd_spectrum *s)
{
    for (int i = 0; i < KVD_N_PAIRS; i++) {
        free(s->pair[i].sigma);
        free(s->pair[i].R);
        free(s->pair[i].right);
    }
    memset(s, 0, sizeof *s);
}

int kvd_spectrum_bases_hash(const kvd_spectrum *s, const kvd_pair pair[2],
                            char hash[KVD_BASES_HASH], kvd_err *err)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state || XXH3_128bits_reset(state) == XXH_ERROR) {
        XXH3_freeState(state);
        return kvd_fail(err, "cannot allocate memory for a hash");
    }
    for (int side = 0; side < 2; side++) {
        const kvd_pair_spectrum *x = &s->pair[pair[side]];
        const size_t d = (size_t)s->model.d_head;
        const size_t bytes = (size_t)s->n_layers * (size_t)x->n_h * d * d * sizeof(double);
        assert(x->present);
        (void)XXH3_128bits_update(state, x->R, bytes);
        if (x->right)
            (void)XXH3_128bits_update(state, x->right, bytes);
    }
    const XXH128_hash_t h = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    (void)snprintf(hash, KVD_BASES_HASH, "xxh3:%016llx%016llx", (unsigned long long)h.high64,
                   (unsigned long long)h.low64);
    return 0;
}

double kvd_effective_rank(const double *sigma, size_t d)
{
    double total = 0, entropy = 0;
    for (size_t i = 0; i < d; i++)
        total += sigma[i] * sigma[i];
    if (!(total > 0))
        return 0;
    for (size_t i = 0; i < d; i++) {
        const double share = sigma[i] * sigma[i] / total;
        if (share > 0)
            entropy -= share * log(share);
    }
    return exp(entropy);
}

int kvd_energy_rank(const double *sigma, size_t d, double share)
{
    double total = 0, sum = 0;
    for (size_t i = 0; i < d; i++)
        total += sigma[i] * sigma[i];
    if (!(total > 0))
        return 0;
    size_t m = 0;
    while (m < d && sum < share * total) {
        sum += sigma[m] * sigma[m];
        m++;
    }
    return (int)m;
}

int kvd_spectrum_summarise(const kvd_spectrum *s, kvd_pair pair, kvd_pair_summary *out,
                           kvd_err *err)
{
    const kvd_pair_spectrum *x = &s->pair[pair];
    const size_t d = (size_t)s->model.d_head, heads = (size_t)s->n_layers * (size_t)x->n_h;
    double *top = malloc(4 * heads * sizeof *top);
    if (!top)
        return kvd_no_memory(err, "the summary of a pair", 4 * heads * sizeof *top);
    for (size_t i = 0; i < heads; i++) {
        const double *sigma = x->sigma + i * d;
        top[i] = sigma[0];
        top[heads + i] = kvd_effective_rank(sigma, d);
        top[2 * heads + i] = kvd_energy_rank(sigma, d, 0.90);
        top[3 * heads + i] = kvd_energy_rank(sigma, d, 0.99);
    }
    *out = (kvd_pair_summary){.heads = heads,
                              .n_rows = x->n_rows,
                              .mean_max_sigma = kvd_mean(top, heads),
                              .cv_max_sigma = kvd_cv(top, heads),
                              .effective_rank = kvd_mean(top + heads, heads),
                              .rank90 = kvd_mean(top + 2 * heads, heads),
                              .rank99 = kvd_mean(top + 3 * heads, heads)};
    free(top);
    return 0;
}

static int write_derived(kvd_h5 *f, const kvd_spectrum *s, kvd_pair pair, const char *h_axis,
                         kvd_err *err)
{
    const kvd_pair_spectrum *x = &s->pair[pair];
    const size_t d = (size_t)s->model.d_head, heads = (size_t)s->n_layers * (size_t)x->n_h;
    double *rank = malloc(heads * sizeof *rank), *mean = calloc(2 * d, sizeof *mean);
    char group[16], path[64];
    kvd_pair_summary sum;
    int status = -1;
    if (!rank || !mean) {
        kvd_no_memory(err, "mean singular values", (heads + 2 * d) * sizeof(double));
        goto done;
    }
    const double scale = x->n_rows ? 1 / sqrt((double)x->n_rows) : 1;
    for (size_t i = 0; i < heads; i++) {
        rank[i] = kvd_effective_rank(x->sigma + i * d, d);
        for (size_t j = 0; j < d; j++)
            mean[j] += x->sigma[i * d + j] / (double)heads;
    }
    for (size_t j = 0; j < d; j++)
        mean[d + j] = mean[j] * scale;

    snprintf(group, sizeof group, "/%s", kvd_pair_name[pair]);
    kvd_h5_spec spec = {path,
                        "exp of the entropy of the energies sigma^2 / sum sigma^2",
                        "1",
                        H5T_IEEE_F64LE,
                        2,
                        {(hsize_t)s->n_layers, (hsize_t)x->n_h},
                        {"layer", h_axis}};
    snprintf(path, sizeof path, "%s/effective_rank", group);
    if (kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, rank, err))
        goto done;
    spec.rank = 1;
    spec.dims[0] = d;
    spec.axes[0] = "dim";
    spec.long_name = "mean of sigma over all layers and heads";
    snprintf(path, sizeof path, "%s/mean_sigma", group);
    if (kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, mean, err))
        goto done;
    spec.long_name =
        "mean of sigma / sqrt(n_rows) over all layers and heads: does not grow with the number of tokens";
    snprintf(path, sizeof path, "%s/mean_sigma_normalised", group);
    if (kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, mean + d, err) ||
        kvd_spectrum_summarise(s, pair, &sum, err) ||
        kvd_h5_put_double(f, group, "cv_max_sigma", sum.cv_max_sigma, err))
        goto done;
    status = 0;
done:
    free(rank);
    free(mean);
    return status;
}

static int write_pair(kvd_h5 *f, const kvd_spectrum *s, kvd_pair pair, kvd_err *err)
{
    const kvd_pair_spectrum *x = &s->pair[pair];
    const hsize_t L = (hsize_t)s->n_layers, H = (hsize_t)x->n_h, d = (hsize_t)s->model.d_head;
    const char *h_axis = x->n_h == s->model.n_kv_heads ? "kv_head" : "head";
    const bool two = kvd_pair_balanced(pair);
    char group[16], path[64];
    snprintf(group, sizeof group, "/%s", kvd_pair_name[pair]);
    kvd_h5_spec spec = {path,
                        two ? "singular values of Cl^(1/2) Cr^(1/2), falling"
                            : "singular values, falling",
                        "1",
                        H5T_IEEE_F64LE,
                        3,
                        {L, H, d},
                        {"layer", h_axis, "dim"}};
    snprintf(path, sizeof path, "%s/sigma", group);
    if (kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, x->sigma, err))
        return -1;
    spec.rank = 4;
    spec.dims[3] = d;
    spec.axes[2] = "dim";
    spec.axes[3] = "component";
    spec.long_name =
        two ? "left matrix: Q or V is multiplied by its leading columns"
            : "orthogonal basis, columns by falling singular value, largest entry of a column positive";
    snprintf(path, sizeof path, "%s/%s", group, two ? "left" : "R");
    if (x->R && kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, x->R, err))
        return -1;
    if (two && x->R) {
        spec.long_name =
            "right matrix: K or W_O^T is multiplied by its leading columns; left right^T = I";
        snprintf(path, sizeof path, "%s/right", group);
        if (kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, x->right, err))
            return -1;
    }
    if (kvd_h5_put_text(f, group, "title", pair_title[pair], err) ||
        kvd_h5_put_text(f, group, "method", two ? "gram" : s->method, err) ||
        kvd_h5_put_text(f, group, "pairing", kvd_pairing_name[s->pairing], err) ||
        kvd_h5_put_int(f, group, "n_tokens", (int64_t)s->n_tokens, err) ||
        kvd_h5_put_int(f, group, "n_rows", (int64_t)x->n_rows, err) ||
        kvd_h5_put_int(f, group, "heads_by_tsqr", (int64_t)x->by_tsqr, err) ||
        kvd_h5_put_text(f, group, "device", x->on_gpu ? "cuda" : "cpu", err))
        return -1;
    return write_derived(f, s, pair, h_axis, err);
}

/* attributes of the group /calibration */
static const struct {
    const char *name;
    size_t at;
    bool whole; /* true if the field is a size_t, false if it is a double */
} calibration_field[] = {
    {"prune", offsetof(kvd_calibration, prune), false},
    {"sequences_dropped", offsetof(kvd_calibration, sequences_dropped), true},
    {"tokens_dropped", offsetof(kvd_calibration, tokens_dropped), true},
    {"centroids", offsetof(kvd_calibration, centroids), true},
    {"kmeans_iterations", offsetof(kvd_calibration, kmeans_iterations), false},
    {"kmeans_residual", offsetof(kvd_calibration, kmeans_residual), false},
    {"seconds_collect", offsetof(kvd_calibration, seconds_collect), false},
    {"seconds_rows", offsetof(kvd_calibration, seconds_rows), false},
    {"seconds_kmeans", offsetof(kvd_calibration, seconds_kmeans), false},
    {"seconds_decompose", offsetof(kvd_calibration, seconds_decompose), false},
};
static const char calibration_group[] = "/calibration", cut[] = "tokens_cut";
enum { N_CALIBRATION = sizeof calibration_field / sizeof *calibration_field };

static int write_calibration(kvd_h5 *f, const kvd_calibration *c, kvd_err *err)
{
    for (size_t i = 0; i < N_CALIBRATION; i++) {
        const char *from = (const char *)c + calibration_field[i].at,
                   *name = calibration_field[i].name;
        if (calibration_field[i].whole
                ? kvd_h5_put_int(f, calibration_group, name,
                                 (int64_t) * (const size_t *)(const void *)from, err)
                : kvd_h5_put_double(f, calibration_group, name, *(const double *)(const void *)from,
                                    err))
            return -1;
    }
    if (c->tokens_cut && kvd_h5_put_int(f, calibration_group, cut, (int64_t)c->tokens_cut, err))
        return -1;
    return kvd_h5_put_int(f, calibration_group, "weighted", c->weighted, err);
}

/* Reads how calibration tokens were chosen. If the file has no group /calibration, *c does not
 * change. */
static int read_calibration(kvd_h5 *f, kvd_calibration *c, kvd_err *err)
{
    int64_t whole;
    if (!kvd_h5_exists(f, calibration_group))
        return 0;
    for (size_t i = 0; i < N_CALIBRATION; i++) {
        char *to = (char *)c + calibration_field[i].at;
        const char *name = calibration_field[i].name;
        if (!calibration_field[i].whole) {
            if (kvd_h5_get_double(f, calibration_group, name, (double *)(void *)to, err))
                return -1;
            continue;
        }
        if (kvd_field_size(f, calibration_group, name, 0, INT64_MAX / 1024, (size_t *)(void *)to,
                           err))
            return -1;
    }
    if (kvd_field_int(f, calibration_group, "weighted", 0, 1, &whole, err) ||
        (H5Aexists_by_name(f->id, calibration_group, cut, H5P_DEFAULT) > 0 &&
         kvd_field_size(f, calibration_group, cut, 0, INT64_MAX / 1024, &c->tokens_cut, err)))
        return -1;
    c->weighted = whole == 1;
    return c->prune >= 0 && c->prune < 1
               ? 0
               : kvd_fail(err, "'%s': %s has prune %g, not 0 <= prune < 1", f->path,
                          calibration_group, c->prune);
}

kvd_named_text kvd_spectrum_text(const kvd_spectrum *s, const char *path)
{
    return (kvd_named_text){.path = path,
                            .label = s->label,
                            .hash = s->corpus_hash,
                            .n_tokens = s->n_tokens + s->calibration.tokens_dropped +
                                        s->calibration.tokens_cut,
                            .seq_len = s->seq_len};
}

int kvd_spectrum_write(kvd_h5 *f, const kvd_spectrum *s, kvd_err *err)
{
    if (kvd_model_info_write(f, &s->model, err) ||
        kvd_h5_put_text(f, "/", "label", s->label, err) ||
        kvd_field_write_corpus_hash(f, s->corpus_hash, err) ||
        kvd_h5_put_text(f, "/", "method", s->method, err) ||
        kvd_h5_put_text(f, "/", "rope", s->rope, err) ||
        kvd_h5_put_text(f, "/", "pairing", kvd_pairing_name[s->pairing], err) ||
        kvd_h5_put_int(f, "/", "n_tokens", (int64_t)s->n_tokens, err) ||
        kvd_h5_put_int(f, "/", "seq_len", (int64_t)s->seq_len, err) ||
        kvd_h5_put_int(f, "/", "first_layer", s->first_layer, err) ||
        kvd_h5_put_int(f, "/", "n_layers", s->n_layers, err) ||
        write_calibration(f, &s->calibration, err))
        return -1;
    for (int i = 0; i < KVD_N_PAIRS; i++)
        if (s->pair[i].present && write_pair(f, s, (kvd_pair)i, err))
            return -1;
    return 0;
}

static int read_header(kvd_h5 *f, kvd_spectrum *s, kvd_err *err)
{
    char pairing[16];
    if (kvd_model_info_read(f, &s->model, err) ||
        kvd_field_text(f, "/", "label", s->label, sizeof s->label, err) ||
        kvd_field_corpus_hash(f, s->corpus_hash, err) ||
        kvd_field_text(f, "/", "method", s->method, sizeof s->method, err) ||
        kvd_field_text(f, "/", "rope", s->rope, sizeof s->rope, err) ||
        kvd_field_text(f, "/", "pairing", pairing, sizeof pairing, err) ||
        kvd_field_size(f, "/", "n_tokens", 1, INT64_MAX / 1024, &s->n_tokens, err) ||
        kvd_field_size(f, "/", "seq_len", 1, INT64_MAX / 1024, &s->seq_len, err) ||
        kvd_field_small(f, "/", "n_layers", 1, s->model.n_layers, &s->n_layers, err) ||
        kvd_field_small(f, "/", "first_layer", 0, s->model.n_layers - s->n_layers, &s->first_layer,
                        err))
        return -1;
    if (strcmp(pairing, "shared") && strcmp(pairing, "per-query"))
        return kvd_fail(err, "'%s': pairing is '%s', neither shared nor per-query", f->path,
                        pairing);
    if (strcmp(s->rope, "after") && strcmp(s->rope, "before") && strcmp(s->rope, "none"))
        return kvd_fail(err, "'%s': rope is '%s', none of after, before, none", f->path, s->rope);
    if (strcmp(s->rope, kvd_model_info_rope(&s->model, strcmp(s->rope, "before") == 0)))
        return kvd_fail(err, "'%s': rope is '%s', but /model has rope_layout '%s'", f->path,
                        s->rope, s->model.rope_layout);
    if (strcmp(s->method, "svd") && strcmp(s->method, "tsqr") && strcmp(s->method, "gram"))
        return kvd_fail(err, "'%s': method is '%s', none of svd, tsqr, gram", f->path, s->method);
    s->pairing = strcmp(pairing, "shared") ? KVD_PER_QUERY : KVD_SHARED;
    return 0;
}

/* Measures how far P = left right^T is from a projection. *off receives the largest element of P -
 * P^T and P^2 - P. */
static int projection_error(const double *left, const double *right, size_t d, double *off,
                            kvd_err *err)
{
    const int n = (int)d;
    double *P = malloc(2 * d * d * sizeof *P);
    if (!P)
        return kvd_no_memory(err, "checking a basis", 2 * d * d * sizeof *P);
    double *square = P + d * d;
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, n, 1.0, left, n, right, n, 0.0, P,
                n);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0, P, n, P, n, 0.0, square,
                n);
    *off = 0;
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++) {
            const double e =
                fmax(fabs(P[i * d + j] - P[j * d + i]), fabs(square[i * d + j] - P[i * d + j]));
            if (!(e <= *off))
                *off = e;
        }
    free(P);
    return 0;
}

static int check_pair(kvd_h5 *f, const kvd_spectrum *s, kvd_pair pair, kvd_err *err)
{
    const size_t d = (size_t)s->model.d_head;
    const char *name = kvd_pair_name[pair];
    for (int l = 0; l < s->n_layers; l++)
        for (int h = 0; h < s->pair[pair].n_h; h++) {
            const double *sigma = kvd_spectrum_sigma(s, pair, l, h);
            double energy = 0;
            for (size_t i = 0; i < d; i++) {
                energy += sigma[i] * sigma[i];
                if (sigma[i] < 0)
                    return kvd_fail(err, "'%s': /%s/sigma layer %d head %d dim %zu is %g, negative",
                                    f->path, name, l, h, i, sigma[i]);
                if (i && sigma[i] > sigma[i - 1])
                    return kvd_fail(
                        err, "'%s': /%s/sigma layer %d head %d rises at dim %zu, from %g to %g",
                        f->path, name, l, h, i, sigma[i - 1], sigma[i]);
            }
            if (!isfinite(energy))
                return kvd_fail(
                    err, "'%s': /%s/sigma layer %d head %d: the squares of up to %g overflow",
                    f->path, name, l, h, sigma[0]);
            if (!s->pair[pair].R)
                continue;
            if (kvd_pair_balanced(pair)) {
                double product = INFINITY;
                if (projection_error(kvd_spectrum_R(s, pair, l, h),
                                     kvd_spectrum_right(s, pair, l, h), d, &product, err))
                    return -1;
                if (!(product <= 1e-6))
                    return kvd_fail(err, "'%s': /%s layer %d head %d: left right^T is off by %g",
                                    f->path, name, l, h, product);
                continue;
            }
            const double off = kvd_orthogonality(kvd_spectrum_R(s, pair, l, h), d);
            if (!(off <= 1e-8))
                return kvd_fail(err,
                                "'%s': /%s/R layer %d head %d is not orthogonal: off by %g, at "
                                "most 1e-8 is allowed (compute it in float64)",
                                f->path, name, l, h, off);
        }
    return 0;
}

/* Reads the rotations. If the file has none, fails unless values_only is true. */
static int read_bases(kvd_h5 *f, kvd_spectrum *s, kvd_pair pair, const hsize_t dims[4],
                      bool values_only, kvd_err *err)
{
    kvd_pair_spectrum *const x = &s->pair[pair];
    const bool two = kvd_pair_balanced(pair);
    char path[64];
    snprintf(path, sizeof path, "/%s/%s", kvd_pair_name[pair], two ? "left" : "R");
    const bool absent = !kvd_h5_exists(f, path);
    if (absent && !values_only)
        return kvd_fail(err,
                        "'%s' holds no bases of %s: make it again by kvdim-spectrum without "
                        "--no-bases",
                        f->path, kvd_pair_name[pair]);
    /* Checks shapes first, because a damaged file may announce any size. */
    if ((!absent && kvd_field_shape(f, path, 4, dims, err)) || kvd_spectrum_alloc(s, pair, err))
        return -1;
    if (absent) {
        free(x->R);
        free(x->right);
        x->R = x->right = NULL;
        return 0;
    }
    if (kvd_h5_read_finite(f, path, 4, dims, x->R, err))
        return -1;
    snprintf(path, sizeof path, "/%s/right", kvd_pair_name[pair]);
    return two ? kvd_h5_read_finite(f, path, 4, dims, x->right, err) : 0;
}

static int read_pair(kvd_h5 *f, kvd_spectrum *s, kvd_pair pair, bool values_only, kvd_err *err)
{
    const int n_h = kvd_pair_heads(&s->model, pair, s->pairing);
    const hsize_t d = (hsize_t)s->model.d_head;
    const hsize_t dims[4] = {(hsize_t)s->n_layers, (hsize_t)n_h, d, d};
    char group[16], path[64], pairing[16];
    size_t n_tokens;
    snprintf(group, sizeof group, "/%s", kvd_pair_name[pair]);
    if (!kvd_h5_exists(f, group))
        return 0;
    snprintf(path, sizeof path, "%s/sigma", group);
    if (kvd_field_size(f, group, "n_rows", 1, INT64_MAX, &s->pair[pair].n_rows, err) ||
        kvd_field_size(f, group, "n_tokens", 1, INT64_MAX, &n_tokens, err) ||
        kvd_field_shape(f, path, 3, dims, err) || read_bases(f, s, pair, dims, values_only, err) ||
        kvd_h5_read_finite(f, path, 3, dims, s->pair[pair].sigma, err))
        return -1;
    if (n_tokens != s->n_tokens)
        return kvd_fail(err, "'%s': n_tokens is %zu in %s, %zu at the root", f->path, n_tokens,
                        group, s->n_tokens);
    if (kvd_field_text(f, group, "pairing", pairing, sizeof pairing, err))
        return -1;
    if (strcmp(pairing, kvd_pairing_name[s->pairing]))
        return kvd_fail(err, "'%s': pairing is '%s' in %s, '%s' at the root", f->path, pairing,
                        group, kvd_pairing_name[s->pairing]);
    return check_pair(f, s, pair, err);
}

static int load(kvd_spectrum *s, const char *path, bool values_only, kvd_err *err)
{
    kvd_h5 f;
    memset(s, 0, sizeof *s);
    if (kvd_h5_open(&f, path, &kvd_schema_spectrum, err))
        return -1;
    int status = kvd_status(read_header(&f, s, err) || read_calibration(&f, &s->calibration, err));
    bool any = false;
    for (int i = 0; !status && i < KVD_N_PAIRS; i++) {
        status = read_pair(&f, s, (kvd_pair)i, values_only, err);
        any = any || s->pair[i].present;
    }
    if (!status && !any)
        status = kvd_fail(err, "'%s': holds no pair", path);
    kvd_h5_close(&f, false);
    if (status)
        kvd_spectrum_release(s);
    return status;
}

int kvd_spectrum_load(kvd_spectrum *s, const char *path, kvd_err *err)
{
    return load(s, path, false, err);
}

int kvd_spectrum_load_values(kvd_spectrum *s, const char *path, kvd_err *err)
{
    return load(s, path, true, err);
}
