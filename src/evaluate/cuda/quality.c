#include "evaluate/cuda/quality.h"

#include <math.h>
#include <stdlib.h>

#include "common/cuda/memory.h"
#include "evaluate/cuda/quality_rows.h"

struct kvd_gpu_quality {
    kvd_device_memory memory;
    size_t max_rows;
    uint32_t *target; /* [max_rows] in GPU memory: next token at each position */
    kvd_quality_row *row, *got;
};

static const char what[] = "quality of predictions";

kvd_gpu_quality *kvd_gpu_quality_new(size_t max_rows, kvd_err *err)
{
    kvd_gpu_quality *const q = calloc(1, sizeof *q);
    if (!q || !(q->got = malloc((max_rows ? max_rows : 1) * sizeof *q->got))) {
        free(q);
        kvd_no_memory(err, what, (unsigned long long)max_rows * sizeof *q->got);
        return NULL;
    }
    q->max_rows = max_rows;
    if (!(q->target = kvd_device_new(&q->memory, max_rows * sizeof *q->target, what, err)) ||
        !(q->row = kvd_device_new(&q->memory, max_rows * sizeof *q->row, what, err))) {
        kvd_gpu_quality_free(q);
        return NULL;
    }
    return q;
}

void kvd_gpu_quality_free(kvd_gpu_quality *q)
{
    if (!q)
        return;
    kvd_device_release(&q->memory);
    free(q->got);
    free(q);
}

static int check_input(const kvd_gpu_quality *q, const uint32_t *target, size_t n, size_t vocab,
                       kvd_err *err)
{
    if (n > q->max_rows)
        return kvd_fail(err, "%s: %zu rows, room for %zu", what, n, q->max_rows);
    if (vocab == 0)
        return kvd_fail(err, "logits have no columns");
    for (size_t i = 0; i < n; i++)
        if (target[i] >= vocab)
            return kvd_fail(err, "target %u of row %zu is beyond the vocabulary of %zu",
                            (unsigned)target[i], i, vocab);
    return 0;
}

static int refuse_not_finite(const kvd_quality_row *row, size_t n, size_t vocab, kvd_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (row[i].bad < vocab || row[i].ref_bad < vocab)
            return kvd_fail(err, "%s of row %zu, column %zu is not finite",
                            row[i].bad < vocab ? "logit" : "reference logit", i,
                            (size_t)(row[i].bad < vocab ? row[i].bad : row[i].ref_bad));
    return 0;
}

int kvd_gpu_quality_add(kvd_gpu_quality *q, const float *logits, const float *reference,
                        const uint32_t *target, const int *sequence, size_t n, size_t vocab,
                        kvd_quality *per_sequence, kvd_prediction_change *each, cudaStream_t stream,
                        kvd_err *err)
{
    if (check_input(q, target, n, vocab, err) ||
        kvd_queue_put(q->target, target, n * sizeof *target, stream, what, err) ||
        kvd_cuda_check(
            kvd_quality_rows(logits, reference, q->target, n, (uint32_t)vocab, q->row, stream),
            what, err) ||
        kvd_queue_get(q->got, q->row, n * sizeof *q->got, stream, what, err) ||
        kvd_cuda_check(cudaStreamSynchronize(stream), what, err) ||
        refuse_not_finite(q->got, n, vocab, err))
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (sequence[i] < 0)
            continue;
        kvd_quality *const s = &per_sequence[sequence[i]];
        s->n++;
        s->nll += q->got[i].nll;
        s->top1 += q->got[i].best == target[i];
        s->kl += q->got[i].kl;
        s->agree += reference && q->got[i].best == q->got[i].ref_best;
        if (each && reference)
            each[i] = (kvd_prediction_change){
                .kl = (float)q->got[i].kl,
                .p_change = (float)(exp(-q->got[i].nll) - exp(-q->got[i].ref_nll))};
    }
    return 0;
}
