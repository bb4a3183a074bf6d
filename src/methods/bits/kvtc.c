/* Method kvtc: quantises groups of principal components with 0, 2, 4 or 8 bits, and compresses them
 * with DEFLATE (Staniszewski and Lancucki 2025, arXiv 2511.01815). */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#ifdef KVD_LIBDEFLATE
#include <libdeflate.h>
#endif

#include "common/linalg.h"
#include "common/memory.h"
#include "common/rng.h"
#include "methods/bits/bits.h"
#include "methods/bits/calibration.h"
#include "methods/bits/rans.h"

enum { BITS, SINK, WINDOW, BLOCK, LANES, ROWS };
static const kvd_parameter parameters[] = {
    {"bits", 2, 0.1, 12, false, "mean number of bits per number before DEFLATE, scales included"},
    {"sink", 4, 0, 1024, true, "number of first tokens kept exact"},
    {"window", 128, 0, 1 << 20, true, "number of newest tokens kept exact"},
    {"block", 64, 1, 1 << 20, true, "tokens per block after the prompt"},
    {"lanes", 0, 0, 1, true,
     "1: tokens that leave the window are coded at once, as streams of 64 positions that 32 lanes "
     "decode at once, in place of DEFLATE"},
    {"rows", 4096, 64, 1 << 20, true, "number of calibration tokens read"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_idle_key idle[] = {{"block", "lanes", 1, 1}, {NULL, NULL, 0, 0}};

/* UNIT * 2^k, with k < N_SIZES: possible numbers of components in a group with a common scale.
 * N_KINDS: number of possible bit widths. SAMPLES: number of tokens on which quantisation errors
 * are measured. */
enum { UNIT = 8, N_SIZES = 8, N_KINDS = 3, SAMPLES = 256 };
static const int bits_of[N_KINDS] = {2, 4, 8};

typedef struct {
    float *mean;  /* [wide] mean of the calibration data */
    float *basis; /* [wide][wide], column j is the j-th principal component */
    kvd_kvtc_group *groups;
    /* n: number of groups of principal components. kept: number of components up to and including
     * the last group that is stored. */
    size_t n, kept;
    /* Tables of the entropy coder that the 32 lanes of a GPU's warp run in parallel. */
    kvd_stream_coder lanes;
} coder;

typedef struct {
    kvd_pool pool; /* must be first */
    const kvd_parameter_values *v;
    int n_layers;
    size_t wide;
    coder *coder;
} kvtc;

/* Mean squared quantisation error of every possible group of adjacent principal components. The
 * division into groups is chosen by these errors. */
typedef struct {
    /* [wide / 8] coded[i][s][b]: squared quantisation error of the group that begins with component
     * 8 i, with the s-th size and the b-th number of bits. */
    double (*coded)[N_SIZES][N_KINDS];
    /* [wide / 8] Mean squared error of every 8 adjacent components if they are dropped instead of
     * quantised. */
    double *variance;
    float *c; /* [n][wide] components of the calibration tokens */
    size_t n;
} costs;

static size_t units_of(size_t wide)
{
    return (wide + UNIT - 1) / UNIT;
}

/* Returns the size of the group of components that begins at component unit * UNIT. The size is
 * UNIT * 2^k, or less at the end of the vector. */
static size_t size_of(size_t wide, size_t unit, int k)
{
    const size_t left = wide - unit * UNIT, size = (size_t)UNIT << k;
    return size < left ? size : left;
}

static void measure(const float *c, size_t n, size_t wide, costs *to)
{
    float decoded[UNIT << (N_SIZES - 1)];
    for (size_t u = 0; u < units_of(wide); u++) {
        to->variance[u] = 0;
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < size_of(wide, u, 0); j++)
                to->variance[u] += pow((double)c[i * wide + u * UNIT + j], 2) / (double)n;
        for (int k = 0; k < N_SIZES; k++)
            for (int kind = 0; kind < N_KINDS; kind++) {
                const size_t size = size_of(wide, u, k);
                double sum = 0;
                for (size_t i = 0; i < n; i++) {
                    const float *const x = c + i * wide + u * UNIT;
                    (void)kvd_quantise_group(x, size, 1, bits_of[kind], decoded);
                    for (size_t j = 0; j < size; j++)
                        sum += ((double)x[j] - (double)decoded[j]) *
                               ((double)x[j] - (double)decoded[j]);
                }
                to->coded[u][k][kind] = sum / (double)n;
            }
    }
}

/* Divides the principal components of K or V into groups such that squared error + `price` * bits
 * is least. Returns the bits per token. */
static double divide(const costs *from, size_t wide, double price, double *least, uint8_t *choice,
                     coder *to)
{
    const size_t units = units_of(wide);
    double bits = 0;
    least[units] = 0;
    for (size_t u = units; u-- > 0;) {
        least[u] = from->variance[u] + least[u + 1];
        choice[u] = N_SIZES * N_KINDS;
        for (int k = 0; k < N_SIZES; k++)
            for (int kind = 0; kind < N_KINDS; kind++) {
                const size_t size = size_of(wide, u, k), next = u + units_of(size);
                const double all = from->coded[u][k][kind] + least[next] +
                                   price * (KVD_GROUP_SIDE_BITS + (double)size * bits_of[kind]);
                if (all < least[u]) {
                    least[u] = all;
                    choice[u] = (uint8_t)(k * N_KINDS + kind);
                }
            }
    }
    to->n = to->kept = 0;
    for (size_t u = 0; u < units;) {
        const bool stored = choice[u] < N_SIZES * N_KINDS;
        const size_t size = size_of(wide, u, stored ? choice[u] / N_KINDS : 0);
        const int b = stored ? bits_of[choice[u] % N_KINDS] : 0;
        to->groups[to->n++] = (kvd_kvtc_group){(uint16_t)(u * UNIT), (uint16_t)size, (uint8_t)b};
        to->kept = stored ? u * UNIT + size : to->kept;
        bits += stored ? KVD_GROUP_SIDE_BITS + (double)size * b : 0;
        u += units_of(size);
    }
    return bits;
}

/* Chooses the groups of principal components of K or V such that the squared error is least with
 * the allowed number of bits. */
static void share_out(kvtc *t, int side, const costs *cost, double *least, uint8_t *choice)
{
    const double budget = t->v->value[BITS] * (double)t->wide * t->n_layers;
    double most = 0, lo = -60, hi = 1;
    for (int l = 0; l < t->n_layers; l++)
        for (size_t u = 0; u < units_of(t->wide); u++)
            most += cost[l].variance[u];
    for (int i = 0; i < 60; i++) {
        const double middle = (lo + hi) / 2;
        double sum = 0;
        for (int l = 0; l < t->n_layers; l++)
            sum += divide(&cost[l], t->wide, most * exp(middle), least, choice,
                          &t->coder[l * KVD_N_SIDES + side]);
        *(sum > budget ? &lo : &hi) = middle;
    }
    for (int l = 0; l < t->n_layers; l++)
        (void)divide(&cost[l], t->wide, most * exp(hi), least, choice,
                     &t->coder[l * KVD_N_SIDES + side]);
}

typedef struct {
    float *rows; /* [n][wide] all heads, minus their mean */
    float *head;
    double *gram, *basis; /* [wide][wide] covariance and its eigenvectors */
    double *sigma, *scratch;
    double *least;
    uint8_t *choice;
    costs *cost;
} making;

static int decorrelate(kvtc *t, const kvd_method_setup *s, kvd_x what, int layer, int side,
                       size_t most, making *m, kvd_err *err)
{
    const size_t wide = t->wide,
                 n = kvd_calibration_all_heads(s, what, layer, most, (size_t)t->v->value[SINK],
                                               m->head, m->rows, err);
    coder *const to = &t->coder[layer * KVD_N_SIDES + side];
    if (!n)
        return -1;
    kvd_subtract_means(m->rows, n, wide, to->mean);
    memset(m->gram, 0, wide * wide * sizeof *m->gram);
    if (kvd_gram_add(m->gram, wide, m->rows, n, wide, m->scratch, err) ||
        kvd_gram_svd(m->gram, wide, m->sigma, m->basis, err))
        return -1;
    for (size_t i = 0; i < wide * wide; i++)
        to->basis[i] = (float)m->basis[i];
    const size_t samples = n < SAMPLES ? n : SAMPLES, stride = n / samples;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)samples, (blasint)wide,
                (blasint)wide, 1, m->rows, (blasint)(stride * wide), to->basis, (blasint)wide, 0,
                m->cost[layer].c, (blasint)wide);
    m->cost[layer].n = samples;
    measure(m->cost[layer].c, samples, wide, &m->cost[layer]);
    return 0;
}

static int new_making(const kvtc *t, const kvd_method_setup *s, size_t n, kvd_pool *pool, making *m,
                      kvd_err *err)
{
    const size_t wide = t->wide, units = units_of(wide);
    *m = (making){.rows = kvd_pool_new(pool, n * wide * sizeof *m->rows),
                  .head = kvd_pool_new(pool, 2 * n * (size_t)s->config->d_head * sizeof *m->head),
                  .gram = kvd_pool_new(pool, wide * wide * sizeof *m->gram),
                  .basis = kvd_pool_new(pool, wide * wide * sizeof *m->basis),
                  .sigma = kvd_pool_new(pool, wide * sizeof *m->sigma),
                  .scratch = kvd_pool_new(pool, kvd_gram_scratch(wide) * sizeof *m->scratch),
                  .least = kvd_pool_new(pool, (units + 1) * sizeof *m->least),
                  .choice = kvd_pool_new(pool, units + 1),
                  .cost = kvd_pool_new(pool, (size_t)t->n_layers * sizeof *m->cost)};
    for (int l = 0; m->cost && l < t->n_layers; l++) {
        costs *const c = &m->cost[l];
        c->coded = kvd_pool_new(pool, units * sizeof *c->coded);
        c->variance = kvd_pool_new(pool, units * sizeof *c->variance);
        c->c = kvd_pool_new(pool, SAMPLES * wide * sizeof *c->c);
    }
    return kvd_pool_check(pool, "calibration rows", err);
}

/* Counts how often each quantised number occurs in group g of the components of n calibration
 * tokens. */
static void count_codes(const float *c, size_t n, size_t wide, const kvd_kvtc_group *g,
                        uint64_t *count)
{
    uint8_t codes[UNIT << (N_SIZES - 1)];
    float scale, zero;
    for (size_t i = 0; i < n; i++) {
        kvd_quantise_codes(c + i * wide + g->first, g->size, g->bits, codes, &scale, &zero);
        for (size_t j = 0; j < g->size; j++)
            count[codes[j]]++;
    }
}

typedef struct {
    kvd_stream_component *component;
    uint16_t *start;
    kvd_stream_group *group;
    float *to, *from;
} lane_arrays;

/* Appends a group of principal components to the entropy coder c->lanes. Overwrites `count`, the
 * histogram of the group's quantised numbers. */
static void add_group(coder *c, const kvd_kvtc_group *g, uint64_t *count, size_t wide,
                      const lane_arrays *a)
{
    kvd_stream_coder *const l = &c->lanes;
    const size_t codes = (size_t)1 << g->bits, first = (size_t)l->streams.kept;
    kvd_rans_table table;
    /* Quantised numbers that do not occur in the calibration data must still have a frequency above
     * 0. */
    for (size_t s = 0; s < codes; s++)
        count[s] = 64 * count[s] + 1;
    kvd_rans_table_make(&table, count, codes);
    memcpy(a->start + l->n_starts, table.start, (codes + 1) * sizeof *a->start);
    for (size_t j = first; j < first + g->size; j++) {
        a->component[j] = (kvd_stream_component){(uint32_t)l->n_starts, 0, (uint16_t)codes};
        for (size_t i = 0; i < wide; i++)
            a->to[i * l->to_pitch + j] = a->from[j * wide + i] =
                c->basis[i * wide + g->first + j - first];
    }
    a->group[l->n_groups++] = (kvd_stream_group){(uint16_t)first, g->size, (uint16_t)(codes - 1)};
    l->streams.kept += (int32_t)g->size;
    l->n_starts += codes + 1;
}

/* Creates the entropy coder's frequency tables from calibration data or, if there are none, with
 * equal frequencies. */
static int make_lanes(kvtc *t, coder *c, const costs *cost, kvd_err *err)
{
    const size_t wide = t->wide;
    size_t kept = 0;
    for (size_t g = 0; g < c->n; g++)
        kept += c->groups[g].bits ? c->groups[g].size : 0;
    const size_t starts = (c->n + 1) * (KVD_RANS_SYMBOLS + 1);
    const lane_arrays a = {kvd_pool_new(&t->pool, (kept + 1) * sizeof *a.component),
                           kvd_pool_new(&t->pool, starts * sizeof *a.start),
                           kvd_pool_new(&t->pool, (c->n + 1) * sizeof *a.group),
                           kvd_pool_new(&t->pool, (kept + 1) * wide * sizeof *a.to),
                           kvd_pool_new(&t->pool, (kept + 1) * wide * sizeof *a.from)};
    c->lanes = (kvd_stream_coder){.wide = wide,
                                  .mean = c->mean,
                                  .to = a.to,
                                  .to_pitch = kept,
                                  .from = a.from,
                                  .group = a.group,
                                  .streams = {0, a.component, a.start},
                                  .drawn = !cost};
    if (kvd_pool_check(&t->pool, "tables of lanes", err))
        return -1;
    for (size_t g = 0; g < c->n; g++) {
        uint64_t count[KVD_RANS_SYMBOLS] = {0};
        if (c->groups[g].bits && cost)
            count_codes(cost->c, cost->n, wide, &c->groups[g], count);
        if (c->groups[g].bits)
            add_group(c, &c->groups[g], count, wide, &a);
    }
    return 0;
}

static int calibrate(kvtc *t, const kvd_method_setup *s, bool pre, kvd_err *err)
{
    const size_t n = kvd_calibration_tokens(s, t->v->value[ROWS]);
    kvd_pool pool = {0};
    making m;
    int status = new_making(t, s, n, &pool, &m, err);
    for (int side = 0; !status && side < KVD_N_SIDES; side++) {
        const kvd_x what = side == KVD_VALUES ? KVD_X_V : pre ? KVD_X_K_PRE : KVD_X_K;
        for (int l = 0; !status && l < t->n_layers; l++)
            status = decorrelate(t, s, what, l, side, n, &m, err);
        if (!status)
            share_out(t, side, m.cost, m.least, m.choice);
        for (int l = 0; !status && t->v->value[LANES] > 0 && l < t->n_layers; l++)
            status = make_lanes(t, &t->coder[l * KVD_N_SIDES + side], &m.cost[l], err);
    }
    kvd_pool_free(&pool);
    return status;
}

static void window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    (void)side;
    *newest = (size_t)v->value[WINDOW];
    *block = v->value[LANES] > 0 ? 1 : (size_t)v->value[BLOCK];
}

/* Creates a random transform, and groups of its principal components, for timing runs. */
static int draw(kvtc *t, coder *c, kvd_rng *r, kvd_err *err)
{
    enum { SIZE = 64 };
    const size_t wide = t->wide;
    /* Vector v of the random reflection I - 2 v v^T / |v|^2, temporarily stored in place of the
     * mean. */
    float *const v = c->mean;
    double square = 0, bits = 0;
    for (size_t i = 0; i < wide; i++) {
        v[i] = (float)kvd_rng_normal(r);
        square += (double)v[i] * (double)v[i];
    }
    for (size_t i = 0; i < wide * wide; i++)
        c->basis[i] = (float)((i / wide == i % wide) -
                              2 * (double)v[i / wide] * (double)v[i % wide] / square);
    memset(v, 0, wide * sizeof *v);
    c->n = c->kept = 0;
    for (size_t at = 0; at < wide; at += SIZE) {
        const size_t size = wide - at < SIZE ? wide - at : SIZE;
        const double left = t->v->value[BITS] * (double)wide - bits;
        const int b = left >= 4.5 * (double)size && 2 * at < wide ? 4
                      : left >= 2.5 * (double)size || !at         ? 2
                                                                  : 0;
        c->groups[c->n++] = (kvd_kvtc_group){(uint16_t)at, (uint16_t)size, (uint8_t)b};
        c->kept = b ? at + size : c->kept;
        bits += b ? KVD_GROUP_SIDE_BITS + (double)size * b : 0;
    }
    return t->v->value[LANES] > 0 ? make_lanes(t, c, NULL, err) : 0;
}

static int draw_all(kvtc *t, const kvd_method_setup *s, kvd_err *err)
{
    kvd_rng r;
    int status = 0;
    kvd_rng_seed(&r, s->seed, 0);
    for (int i = 0; !status && i < t->n_layers * KVD_N_SIDES; i++)
        status = draw(t, &t->coder[i], &r, err);
    return status;
}

static int fits(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err)
{
    (void)v;
    return s->drawn ? 0 : kvd_calibration_fits(s, s->config->positions == KVD_POSITIONS_ROPE, err);
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    const kvd_config *const c = s->config;
    const bool pre = c->positions == KVD_POSITIONS_ROPE;
    const size_t wide = (size_t)c->n_kv_heads * (size_t)c->d_head;
    const int coders = c->n_layers * KVD_N_SIDES;
    kvtc *const t = kvd_pool_open(sizeof *t);
    if (!t)
        return kvd_no_memory(err, "a method", sizeof *t);
    t->v = v;
    t->n_layers = c->n_layers;
    t->wide = wide;
    t->coder = kvd_pool_new(&t->pool, (size_t)coders * sizeof *t->coder);
    for (int i = 0; t->coder && i < coders; i++)
        t->coder[i] =
            (coder){.mean = kvd_pool_new(&t->pool, wide * sizeof(float)),
                    .basis = kvd_pool_new(&t->pool, wide * wide * sizeof(float)),
                    .groups = kvd_pool_new(&t->pool, units_of(wide) * sizeof(kvd_kvtc_group))};
    const bool failed = kvd_pool_check(&t->pool, "bases", err) ||
                        (s->drawn ? draw_all(t, s, err) : calibrate(t, s, pre, err));
    return kvd_pool_give(t, failed, self);
}

size_t kvd_kvtc_groups(const void *self, int layer, kvd_side side, const kvd_kvtc_group **groups)
{
    const kvtc *const t = self;
    const coder *const c = &t->coder[layer * KVD_N_SIDES + (int)side];
    *groups = c->groups;
    return c->n;
}

typedef struct {
    float *x; /* [n][wide] numbers minus their mean, then the decoded numbers */
    float *c; /* [n][wide] principal components */
    /* [groups][n][2] Scale and zero point of each group of principal components, for each of n
     * tokens. */
    float *scale;
    uint8_t *codes;
    uint8_t *packed;
    uint8_t *small;
    uint32_t *position;
} buffers;

static size_t packed_bytes(const coder *c, size_t n)
{
    size_t bits = 0;
    for (size_t g = 0; g < c->n; g++)
        bits += n * c->groups[g].size * c->groups[g].bits;
    return (bits + 7) / 8;
}

/* Quantises the principal components of n tokens and packs the codes into bytes. If `read` is true,
 * unpacks and decodes them instead. */
static void pass(const coder *c, const buffers *w, size_t n, size_t wide, bool read)
{
    size_t at = 0;
    for (size_t g = 0; g < c->n; g++) {
        const kvd_kvtc_group *const q = &c->groups[g];
        for (size_t i = 0; i < n; i++) {
            float *const x = w->c + i * wide + q->first, *const scale = w->scale + 2 * (g * n + i);
            if (q->bits && !read)
                kvd_quantise_codes(x, q->size, q->bits, w->codes, &scale[0], &scale[1]);
            for (size_t j = 0; j < q->size; j++, at += q->bits) {
                uint8_t *const byte = &w->packed[at / 8];
                const unsigned mask = (1u << q->bits) - 1;
                if (!q->bits)
                    x[j] = 0;
                else if (read)
                    x[j] = scale[0] * (float)((unsigned)*byte >> at % 8 & mask) + scale[1];
                else
                    *byte = (uint8_t)((at % 8 ? *byte : 0) | (unsigned)w->codes[j] << at % 8);
            }
        }
        at = (at + 7) / 8 * 8;
    }
}

#ifdef KVD_LIBDEFLATE

size_t kvd_kvtc_deflate_room(size_t n)
{
    return libdeflate_zlib_compress_bound(NULL, n);
}

size_t kvd_kvtc_deflate(const uint8_t *from, size_t n, uint8_t *to, size_t room)
{
    enum { LEVEL = 6 };
    struct libdeflate_compressor *const c = libdeflate_alloc_compressor(LEVEL);
    const size_t small = c ? libdeflate_zlib_compress(c, from, n, to, room) : 0;
    if (c)
        libdeflate_free_compressor(c);
    return small;
}

#else

size_t kvd_kvtc_deflate_room(size_t n)
{
    return compressBound(n);
}

size_t kvd_kvtc_deflate(const uint8_t *from, size_t n, uint8_t *to, size_t room)
{
    uLongf small = room;
    return compress2(to, &small, from, n, Z_DEFAULT_COMPRESSION) == Z_OK ? small : 0;
}

#endif

static bool inflated(const uint8_t *from, size_t small, uint8_t *to, size_t n)
{
    uLongf whole = n;
    return uncompress(to, &whole, from, small) == Z_OK && whole == n;
}

static int not_compressed(size_t n, kvd_err *err)
{
    return kvd_fail(err, "DEFLATE did not compress a block of %zu rows", n);
}

static int code_packed(const coder *c, const buffers *w, size_t n, size_t wide, size_t small_room,
                       kvd_bits_count *count, kvd_err *err)
{
    const size_t size = packed_bytes(c, n) + c->n;
    memset(w->packed, 0, size);
    pass(c, w, n, wide, false);
    const size_t small = kvd_kvtc_deflate(w->packed, size, w->small, small_room);
    if (!small || !inflated(w->small, small, w->packed, size))
        return not_compressed(n, err);
    pass(c, w, n, wide, true);
    count->payload += 8 * (double)small;
    return 0;
}

const float *kvd_kvtc_basis(const void *self, int layer, kvd_side side, const float **mean)
{
    const kvtc *const t = self;
    const coder *const c = &t->coder[layer * KVD_N_SIDES + (int)side];
    *mean = c->mean;
    return c->basis;
}

int kvd_kvtc_count(const void *self, int layer, kvd_side side, uint8_t *packed, size_t n,
                   double *bits, kvd_err *err)
{
    const kvtc *const t = self;
    const coder *const c = &t->coder[layer * KVD_N_SIDES + (int)side];
    const size_t bytes = packed_bytes(c, n), size = bytes + c->n,
                 room = kvd_kvtc_deflate_room(size);
    if (!c->kept || !n)
        return 0;
    uint8_t *const to = malloc(room);
    if (!to)
        return kvd_no_memory(err, "a block of the cache", room);
    memset(packed + bytes, 0, c->n);
    const size_t small = kvd_kvtc_deflate(packed, size, to, room);
    free(to);
    *bits += 8 * (double)small;
    for (size_t g = 0; g < c->n; g++)
        *bits += c->groups[g].bits ? KVD_GROUP_SIDE_BITS * (double)n : 0;
    return small ? 0 : not_compressed(n, err);
}

static void quantise_token(const coder *c, float *x, uint8_t *codes, int32_t *q)
{
    float scale, zero;
    for (size_t g = 0; g < c->n; g++) {
        const kvd_kvtc_group *const of = &c->groups[g];
        float *const y = x + of->first;
        if (of->bits)
            kvd_quantise_codes(y, of->size, of->bits, codes, &scale, &zero);
        for (size_t j = 0; j < of->size; j++) {
            y[j] = of->bits ? scale * (float)codes[j] + zero : 0;
            if (of->bits)
                *q++ = codes[j];
        }
    }
}

static int code_lanes(const coder *c, const buffers *w, size_t n, size_t wide, uint32_t *state,
                      kvd_bits_count *count, kvd_err *err)
{
    const kvd_stream_tables *const t = &c->lanes.streams;
    const size_t bytes = (size_t)t->kept * sizeof(int32_t) + kvd_streams_scratch(t->kept);
    int32_t *const q = malloc(bytes);
    if (!q)
        return kvd_no_memory(err, "a block of the cache", bytes);
    int status = 0;
    for (size_t i = 0; !status && i < n; i++) {
        if (!state[0] || w->position[i] % KVD_STREAM_POSITIONS == 0)
            count->side += kvd_streams_begin(t->kept, state);
        quantise_token(c, w->c + i * wide, w->codes, q);
        status = kvd_streams_token(t, q, state, q + t->kept, &count->payload, err);
    }
    free(q);
    return status;
}

/* Encodes and decodes n tokens. Uses DEFLATE if `state` is NULL, otherwise the entropy coder that
 * also runs on the GPU. */
static int code_rows(const coder *c, const buffers *w, size_t n, size_t wide, size_t small_room,
                     uint32_t *state, kvd_bits_count *count, kvd_err *err)
{
    if (c->kept == 0) {
        memset(w->x, 0, n * wide * sizeof *w->x);
        return 0;
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)n, (blasint)wide, (blasint)wide,
                1, w->x, (blasint)wide, c->basis, (blasint)wide, 0, w->c, (blasint)wide);
    if (state ? code_lanes(c, w, n, wide, state, count, err)
              : code_packed(c, w, n, wide, small_room, count, err))
        return -1;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)n, (blasint)wide,
                (blasint)c->kept, 1, w->c, (blasint)wide, c->basis, (blasint)wide, 0, w->x,
                (blasint)wide);
    for (size_t g = 0; g < c->n; g++)
        count->side += c->groups[g].bits ? KVD_GROUP_SIDE_BITS * (double)n : 0;
    return 0;
}

static size_t states(const void *self)
{
    const kvtc *const t = self;
    size_t most = 1;
    for (int i = 0; t->v->value[LANES] > 0 && i < t->n_layers * KVD_N_SIDES; i++) {
        const size_t n = (size_t)kvd_stream_count(t->coder[i].lanes.streams.kept) * KVD_LANES;
        most = n > most ? n : most;
    }
    return most;
}

void kvd_kvtc_coder_of(const void *self, int layer, int side, kvd_stream_coder *to)
{
    const kvtc *const t = self;
    *to = t->coder[layer * KVD_N_SIDES + side].lanes;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const kvtc *const t = self;
    const coder *const c = &t->coder[b->layer * KVD_N_SIDES + (int)b->side];
    const size_t wide = t->wide, numbers = b->n * wide, sink = (size_t)t->v->value[SINK],
                 packed = packed_bytes(c, b->n) + c->n, small = kvd_kvtc_deflate_room(packed);
    const bool lanes = t->v->value[LANES] > 0;
    kvd_pool pool = {0};
    const buffers w = {.x = kvd_pool_new(&pool, numbers * sizeof *w.x),
                       .c = kvd_pool_new(&pool, numbers * sizeof *w.c),
                       .scale = kvd_pool_new(&pool, 2 * b->n * c->n * sizeof *w.scale),
                       .codes = kvd_pool_new(&pool, wide),
                       .packed = kvd_pool_new(&pool, packed),
                       .small = kvd_pool_new(&pool, small),
                       .position = kvd_pool_new(&pool, b->n * sizeof *w.position)};
    uint32_t *state = lanes ? b->state : NULL;
    if (lanes && !state)
        state = kvd_pool_new(&pool, states(t) * sizeof *state);
    int status = kvd_pool_check(&pool, "a block of the cache", err);
    *count = (kvd_bits_count){0, 0};
    if (!status) {
        const size_t n = kvd_bits_take_rows(b, sink, c->mean, decoded, w.x, w.position, count);
        status = n ? code_rows(c, &w, n, wide, small, state, count, err) : 0;
    }
    if (!status)
        kvd_bits_give_rows(b, sink, c->mean, w.x, decoded);
    kvd_pool_free(&pool);
    return status;
}

const kvd_bits_method kvd_bits_kvtc = {
    .info = {.name = "kvtc",
             .summary = "principal components of all heads, bits by dynamic programming, DEFLATE",
             .parameter = parameters,
             .idle = idle,
             .tradeoff = &(const kvd_tradeoff){"bits", 6, 0.5, true, NULL, 0, 0},
             .needs = KVD_NEEDS_ACTIVATIONS | KVD_NEEDS_PRE_ROPE,
             .gpu = &kvd_gpu_streams},
    .exact_key = "sink",
    .keys_before_rope = true,
    .all_heads = true,
    .drawn = true,
    .stream = true,
    .states = states,
    .window = window,
    .fits = fits,
    .open = open,
    .close = kvd_pool_close,
    .code = code,
};
