#include "analysis/reduce.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/rng.h"

/* Option --prune drops some of the sequences into which each calibration text is divided. For text
 * i, random number stream TEXT_STREAMS + i chooses these sequences. */
#define TEXT_STREAMS ((uint64_t)1 << 48)

static int choose_dropped(bool *dropped, size_t n, size_t n_dropped, uint64_t seed, size_t text,
                          kvd_err *err)
{
    size_t *index = malloc(n * sizeof *index);
    kvd_rng rng;
    if (!index)
        return kvd_no_memory(err, "sequences", n * sizeof *index);
    kvd_rng_seed(&rng, seed, TEXT_STREAMS + text);
    kvd_rng_choose(&rng, n, n_dropped, index);
    memset(dropped, 0, n * sizeof *dropped);
    for (size_t i = 0; i < n_dropped; i++)
        dropped[index[i]] = true;
    free(index);
    return 0;
}

static size_t spans_of(const size_t *start, const bool *dropped, size_t n, kvd_span *span)
{
    size_t n_spans = 0;
    for (size_t i = 0; i < n; i++) {
        if (dropped[i])
            continue;
        const size_t length = start[i + 1] - start[i];
        if (i > 0 && !dropped[i - 1])
            span[n_spans - 1].n += length;
        else
            span[n_spans++] = (kvd_span){start[i], length};
    }
    return n_spans;
}

/* Drops round(prune * n) of n sequences at random. `span` [n] receives the ranges of tokens that
 * remain. */
static int prune_source(kvd_source *s, const size_t *start, size_t n, size_t text, double prune,
                        uint64_t seed, kvd_span *span, kvd_pruned *out, kvd_err *err)
{
    const size_t n_dropped = (size_t)llround(prune * (double)n);
    if (n_dropped == n)
        return kvd_fail(err, "'%s': of %zu sequences none is left when %g of them are dropped",
                        s->dump->file.path, n, prune);
    bool *dropped = malloc(n * sizeof *dropped);
    if (!dropped)
        return kvd_no_memory(err, "sequences", n * sizeof *dropped);
    const int status = choose_dropped(dropped, n, n_dropped, seed, text, err);
    if (!status) {
        size_t left = 0;
        s->span = span;
        s->n_spans = spans_of(start, dropped, n, span);
        for (size_t i = 0; i < s->n_spans; i++)
            left += span[i].n;
        out->n_sequences += n_dropped;
        out->n_tokens += s->n_tokens - left;
        s->n_tokens = left;
    }
    free(dropped);
    return status;
}

int kvd_prune(kvd_source *source, size_t n_sources, double prune, uint64_t seed, kvd_pruned *out,
              kvd_err *err)
{
    size_t room = 0, used = 0;
    int status = 0;
    assert(prune >= 0 && prune < 1);
    *out = (kvd_pruned){0};
    for (size_t i = 0; i < n_sources; i++)
        room += source[i].dump->n_sequences;
    if (!(out->span = malloc(room * sizeof *out->span)))
        return kvd_no_memory(err, "the sequences that stay", room * sizeof *out->span);
    for (size_t i = 0; !status && i < n_sources; i++) {
        size_t *start = NULL, n;
        if (kvd_activations_sequences(source[i].dump, source[i].n_tokens, &start, &n, err))
            return -1;
        status = prune_source(&source[i], start, n, i, prune, seed, out->span + used, out, err);
        used += n;
        free(start);
    }
    return status;
}

void kvd_pruned_release(kvd_pruned *p)
{
    free(p->span);
    *p = (kvd_pruned){0};
}

typedef struct {
    float *rows;
    size_t n, room, d;
} gathered;

static int gather(void *ctx, const float *rows, size_t n, kvd_err *err)
{
    gathered *g = ctx;
    (void)err;
    assert(n <= g->room - g->n);
    memcpy(g->rows + g->n * g->d, rows, n * g->d * sizeof *rows);
    g->n += n;
    return 0;
}

static int keep_centroids(const double *centroid, const size_t *count, size_t k, size_t d,
                          bool weighted, float **rows, size_t *n_rows, kvd_err *err)
{
    size_t n = 0;
    for (size_t c = 0; c < k; c++)
        n += count[c] > 0;
    if (!(*rows = malloc(n * d * sizeof **rows)))
        return kvd_no_memory(err, "centroids", n * d * sizeof **rows);
    *n_rows = n;
    float *to = *rows;
    for (size_t c = 0; c < k; c++) {
        if (!count[c])
            continue;
        const double weight = weighted ? sqrt((double)count[c]) : 1;
        for (size_t j = 0; j < d; j++)
            *to++ = (float)(weight * centroid[c * d + j]);
    }
    return 0;
}

static int cluster(const gathered *g, const kvd_reduction *r, uint64_t stream, float **rows,
                   size_t *n_rows, kvd_reduced *sum, kvd_err *err)
{
    const size_t k = r->centroids;
    double *centroid = malloc(k * g->d * sizeof *centroid);
    size_t *count = malloc(k * sizeof *count), *start = malloc(g->n * sizeof *start);
    kvd_kmeans_trace trace;
    kvd_rng rng;
    int status = -1;
    if (!centroid || !count || !start) {
        kvd_no_memory(err, "centroids", k * (g->d + 1) * sizeof(double) + g->n * sizeof *start);
        goto done;
    }
    kvd_rng_seed(&rng, r->seed, stream);
    kvd_rng_choose(&rng, g->n, k, start);
    if (kvd_kmeans(g->rows, g->n, g->d, k, start, centroid, count, &trace, err) ||
        keep_centroids(centroid, count, k, g->d, r->weighted, rows, n_rows, err))
        goto done;
    sum->n++;
    sum->n_iterations += trace.n_iterations;
    sum->residual += trace.last;
    sum->energy += trace.energy;
    status = 0;
done:
    free(centroid);
    free(count);
    free(start);
    return status;
}

static int reduce_head(const kvd_source *source, size_t n_sources, kvd_x x, int layer, int head,
                       const kvd_reduction *r, gathered *g, kvd_layer_rows *out, kvd_reduced *sum,
                       kvd_err *err)
{
    const double begin = kvd_clock_s();
    g->n = 0;
    for (size_t i = 0; i < n_sources; i++)
        if (kvd_source_rows(&source[i], x, layer, head, gather, g, err))
            return -1;
    const double read = kvd_clock_s();
    const kvd_activations *a = source->dump;
    const uint64_t stream =
        ((uint64_t)(a->first_layer + layer) * KVD_N_X + (uint64_t)x) * (uint64_t)a->model.n_heads +
        (uint64_t)head;
    const int status = cluster(g, r, stream, &out->rows[x][head], &out->n_rows[x][head], sum, err);
    sum->read_s += read - begin;
    sum->kmeans_s += kvd_clock_s() - read;
    return status ? kvd_in(err, "K-means of %s, layer %d, head %d", kvd_x_name[x],
                           a->first_layer + layer, head)
                  : 0;
}

static int rows_of_tensor(kvd_layer_rows *out, kvd_x x, int n_heads, kvd_err *err)
{
    out->n_heads[x] = n_heads;
    out->rows[x] = calloc((size_t)n_heads, sizeof *out->rows[x]);
    out->n_rows[x] = calloc((size_t)n_heads, sizeof *out->n_rows[x]);
    return out->rows[x] && out->n_rows[x] ? 0
                                          : kvd_no_memory(err, "centroids", (size_t)n_heads * 16);
}

int kvd_reduce_layer(const kvd_source *source, size_t n_sources, const bool need[KVD_N_X],
                     int layer, const kvd_reduction *r, kvd_layer_rows *out, kvd_reduced *sum,
                     kvd_err *err)
{
    gathered g = {.d = (size_t)source->dump->model.d_head};
    int status = 0;
    assert(r->centroids > 0 && n_sources > 0);
    *out = (kvd_layer_rows){.d_head = g.d};
    for (size_t i = 0; i < n_sources; i++)
        g.room += source[i].n_tokens;
    if (r->centroids > g.room)
        return kvd_fail(err, "%zu centroids are more than the %zu tokens that they replace",
                        r->centroids, g.room);
    if (!(g.rows = malloc(g.room * g.d * sizeof *g.rows)))
        return kvd_no_memory(err, "the rows of a head", g.room * g.d * sizeof *g.rows);
    for (int x = 0; !status && x < KVD_N_X; x++) {
        if (!need[x])
            continue;
        status = rows_of_tensor(out, (kvd_x)x, kvd_activations_heads(source->dump, (kvd_x)x), err);
        for (int h = 0; !status && h < out->n_heads[x]; h++)
            status = reduce_head(source, n_sources, (kvd_x)x, layer, h, r, &g, out, sum, err);
    }
    free(g.rows);
    if (status)
        kvd_layer_rows_release(out);
    return status;
}

void kvd_layer_rows_release(kvd_layer_rows *r)
{
    for (int x = 0; x < KVD_N_X; x++) {
        for (int h = 0; r->rows[x] && h < r->n_heads[x]; h++)
            free(r->rows[x][h]);
        free(r->rows[x]);
        free(r->n_rows[x]);
    }
    *r = (kvd_layer_rows){0};
}
