#include "collect/sums.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/linalg.h"
#include "common/threads.h"

int kvd_accumulator_init(kvd_accumulator *a, kvd_moments *sums, int n_threads, kvd_err *err)
{
    const size_t n = (size_t)n_threads * kvd_gram_scratch((size_t)sums->model.d_head);
    *a = (kvd_accumulator){.sums = sums, .n_threads = n_threads};
    if (!(a->scratch = malloc(n * sizeof *a->scratch)))
        return kvd_no_memory(err, "second moments", n * sizeof *a->scratch);
    return 0;
}

void kvd_accumulator_release(kvd_accumulator *a)
{
    free(a->scratch);
    a->scratch = NULL;
}

/* One head: rows X [n][d] with leading dimension ld. */
typedef struct {
    kvd_g g;
    int head;
    const float *x;
    size_t ld;
} job;

/*
 * Computes all sums of a layer. There are many heads with small matrices, so each thread takes one
 * head at a time, with single-threaded BLAS. One thread adds up each sum in the order of the rows,
 * so the result is the same for any schedule.
 */
static int add_all(kvd_accumulator *a, int layer, const job *jobs, int n_jobs, size_t n,
                   kvd_err *err)
{
    const size_t d = (size_t)a->sums->model.d_head;
    /* index of the first job that failed, which is the same for any schedule */
    int failed = n_jobs;
    const int saved = kvd_blas_serial();
#pragma omp parallel for num_threads(a->n_threads) schedule(dynamic)
    for (int i = 0; i < n_jobs; i++) {
        kvd_err mine = {""};
        double *G = kvd_moments_at(a->sums, jobs[i].g, layer, jobs[i].head);
        double *scratch = a->scratch + kvd_thread_index() * kvd_gram_scratch(d);
        if (kvd_gram_add(G, d, jobs[i].x, n, jobs[i].ld, scratch, &mine)) {
#pragma omp critical(kvd_accumulate_error)
            if (i < failed) {
                failed = i;
                *err = mine;
            }
        }
    }
    kvd_blas_restore(saved);
    if (failed < n_jobs)
        return kvd_in(err, "layer %d head %d: %s", a->sums->first_layer + layer, jobs[failed].head,
                      kvd_g_name[jobs[failed].g]);
    return 0;
}

int kvd_accumulator_record(kvd_accumulator *a, const kvd_attention_in *in, kvd_err *err)
{
    const kvd_moments *m = a->sums;
    const int layer = in->layer - m->first_layer;
    if (layer < 0 || layer >= m->n_layers)
        return 0;
    const double start = kvd_clock_s();
    const float *from[KVD_N_G] = {in->q, in->k, in->v, in->q_pre, in->k_pre, NULL, NULL};
    const size_t d = (size_t)m->model.d_head;
    int n_jobs = 0;
    for (int g = KVD_G_Q; g <= KVD_G_K_PRE; g++)
        n_jobs += m->gram[g] ? kvd_moments_heads(m, (kvd_g)g) : 0;
    job *jobs = malloc((size_t)n_jobs * sizeof *jobs);
    if (!jobs)
        return kvd_no_memory(err, "second moments", (size_t)n_jobs * sizeof *jobs);
    job *j = jobs;
    for (int g = KVD_G_Q; g <= KVD_G_K_PRE; g++)
        for (int h = 0; m->gram[g] && h < kvd_moments_heads(m, (kvd_g)g); h++) {
            const size_t ld = (size_t)kvd_moments_heads(m, (kvd_g)g) * d;
            const job next = {(kvd_g)g, h, from[g] + (size_t)h * d, ld};
            *j++ = next;
        }
    const int status = add_all(a, layer, jobs, n_jobs, in->n_tokens, err);
    free(jobs);
    a->seconds += kvd_clock_s() - start;
    return status;
}

static int add_weight(kvd_accumulator *a, kvd_g g, int layer, const float *w, float *transposed,
                      kvd_err *err)
{
    const size_t d = (size_t)a->sums->model.d_head, width = (size_t)a->sums->model.d_model;
    for (int h = 0; h < kvd_moments_heads(a->sums, g); h++) {
        const float *from = w + (size_t)h * d * width;
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < width; j++)
                transposed[j * d + i] = from[i * width + j];
        double *G = kvd_moments_at(a->sums, g, layer, h);
        memset(G, 0, d * d * sizeof *G);
        const job one = {g, h, transposed, d};
        if (add_all(a, layer, &one, 1, width, err))
            return -1;
    }
    return 0;
}

int kvd_accumulator_weights(kvd_accumulator *a, int layer, const float *w_o, const float *w_v,
                            kvd_err *err)
{
    const size_t n = (size_t)a->sums->model.d_head * (size_t)a->sums->model.d_model;
    float *transposed = malloc(n * sizeof *transposed);
    if (!transposed)
        return kvd_no_memory(err, "weights of a head", n * sizeof *transposed);
    const int status = add_weight(a, KVD_G_W_O, layer, w_o, transposed, err) ||
                       add_weight(a, KVD_G_W_V, layer, w_v, transposed, err);
    free(transposed);
    return status ? -1 : 0;
}
