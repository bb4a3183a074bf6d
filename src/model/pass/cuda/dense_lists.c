#include "model/pass/cuda/dense_lists.h"

#include <stdlib.h>
#include <string.h>

#include "common/cuda/memory.h"
#include "kernels/layout.h"

enum { COLUMNS = 4 };

static const char what[] = "lengths of attention";

static kvd_dense_columns columns_in(void *array, size_t n)
{
    int32_t *const a = array;
    return (kvd_dense_columns){a, a + n, a + 2 * n, a + 3 * n};
}

size_t kvd_dense_lists_bytes(size_t max_sequences)
{
    return COLUMNS * max_sequences * sizeof(int32_t);
}

int kvd_dense_lists_init(kvd_dense_lists *l, size_t max_sequences, size_t run_sequences,
                         kvd_err *err)
{
    const size_t bytes = kvd_dense_lists_bytes(max_sequences);
    const size_t runs = (max_sequences + run_sequences - 1) / run_sequences;
    memset(l, 0, sizeof *l);
    l->max_sequences = max_sequences;
    l->run_sequences = run_sequences;
    l->run = malloc(runs * sizeof *l->run);
    if (!l->run)
        return kvd_no_memory(err, what, runs * sizeof *l->run);
    if (kvd_cuda_check(cudaMallocHost(&l->pinned, bytes), what, err) ||
        kvd_cuda_check(cudaMalloc(&l->array, bytes), what, err) ||
        kvd_cuda_check(cudaEventCreateWithFlags(&l->copied, cudaEventDisableTiming), what, err))
        return -1;
    l->host = columns_in(l->pinned, max_sequences);
    l->device = columns_in(l->array, max_sequences);
    return 0;
}

void kvd_dense_lists_release(kvd_dense_lists *l)
{
    if (l->copied)
        (void)cudaEventDestroy(l->copied);
    (void)cudaFree(l->array);
    (void)cudaFreeHost(l->pinned);
    free(l->run);
    free(l->offset);
    memset(l, 0, sizeof *l);
}

static size_t pages_of(size_t tokens)
{
    return (tokens + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
}

/* Adds sequence i of the batch to the lists. The sequence has `len` tokens; its first token is
 * token `at` of the batch. */
static void add(kvd_dense_lists *l, size_t i, size_t at, size_t len, size_t *next_page)
{
    if (i % l->run_sequences == 0) {
        l->run[l->n_runs++] = (kvd_dense_run){.first = i, .row = at, .no_gaps = 1};
        *next_page = 0;
    }
    kvd_dense_run *const r = &l->run[l->n_runs - 1];
    r->no_gaps = r->no_gaps && r->n_q8 == r->n_tokens;
    l->host.start[i] = (int32_t)(at - r->row);
    l->host.len[i] = (int32_t)len;
    l->host.q_start[i] = (int32_t)r->n_q8;
    l->host.first_page[i] = (int32_t)*next_page;
    const size_t pages = pages_of(len);
    *next_page += pages;
    r->n++;
    r->n_tokens += len;
    r->n_q8 += (len + 7) / 8 * 8;
    r->max_pages = pages > r->max_pages ? pages : r->max_pages;
}

static int remember(kvd_dense_lists *l, const size_t *offset, size_t n, kvd_err *err)
{
    size_t *const copy = realloc(l->offset, (n + 1) * sizeof *copy);
    if (!copy)
        return kvd_no_memory(err, what, (n + 1) * sizeof *copy);
    memcpy(copy, offset, (n + 1) * sizeof *copy);
    l->offset = copy;
    l->n_sequences = n;
    return 0;
}

int kvd_dense_lists_upload(kvd_dense_lists *l, const size_t *offset, size_t n_sequences,
                           cudaStream_t stream, int *changed, kvd_err *err)
{
    *changed = !l->described || n_sequences != l->n_sequences ||
               memcmp(offset, l->offset, (n_sequences + 1) * sizeof *offset) != 0;
    if (!*changed)
        return 0;
    l->described = 0;
    if (kvd_cuda_check(cudaEventSynchronize(l->copied), what, err) ||
        remember(l, offset, n_sequences, err))
        return -1;
    size_t n = 0, next_page = 0;
    l->n_runs = 0;
    for (size_t s = 0; s < n_sequences; s++) {
        const size_t len = offset[s + 1] - offset[s];
        if (len && n == l->max_sequences)
            return kvd_fail(err, "attention of more than %zu sequences", l->max_sequences);
        if (len)
            add(l, n++, offset[s], len, &next_page);
    }
    for (int c = 0; c < COLUMNS && n; c++) {
        const size_t at = (size_t)c * l->max_sequences;
        if (kvd_queue_put((int32_t *)l->array + at, (int32_t *)l->pinned + at, n * sizeof(int32_t),
                          stream, what, err))
            return -1;
    }
    if (kvd_cuda_check(cudaEventRecord(l->copied, stream), what, err))
        return -1;
    l->described = 1;
    return 0;
}
