#include "methods/cuda/step_batch.h"

static const char what[] = "lists of an iteration";

enum {
    LISTS = 9,
    STEP_LISTS = 5 /* number of lists for decode steps, first in memory */,
    LIVE = 8,
    CONSTANTS = 2
};

/* Divides one memory block into the arrays of kvd_batch_lists. */
static kvd_batch_lists lists_in(void *array, size_t n, size_t tokens)
{
    int32_t *const a = array;
    int32_t *const b = a + STEP_LISTS * n + LIVE;
    uint32_t *const id = (uint32_t *)b + (LISTS - STEP_LISTS) * n;
    return (kvd_batch_lists){.kv_len = a,
                             .step_id = (uint32_t *)a + n,
                             .step_at = (uint32_t *)a + 2 * n,
                             .slot = a + 3 * n,
                             .seq_len = a + 4 * n,
                             .live = a + STEP_LISTS * n,
                             .q_len = b,
                             .start = b + n,
                             .q_start = b + 2 * n,
                             .last = b + 3 * n,
                             .id = id,
                             .at = id + tokens};
}

int kvd_step_batch_init(kvd_step_batch *b, size_t max_slices, size_t max_tokens, kvd_err *err)
{
    const size_t bytes =
        (LIVE + (LISTS + CONSTANTS) * max_slices + 2 * max_tokens) * sizeof(int32_t);
    *b = (kvd_step_batch){.max_slices = max_slices, .max_tokens = max_tokens};
    b->pinned = kvd_device_pinned(&b->memory, bytes, what, err);
    b->array = kvd_device_new(&b->memory, bytes, what, err);
    if (b->memory.status)
        return -1;
    b->host = lists_in(b->pinned, max_slices, max_tokens);
    b->device = lists_in(b->array, max_slices, max_tokens);
    int32_t *const constant = (int32_t *)b->pinned + LIVE + LISTS * max_slices + 2 * max_tokens;
    for (size_t i = 0; i < max_slices; i++) {
        constant[i] = 1;
        constant[max_slices + i] = (int32_t)i;
    }
    b->one = (int32_t *)b->array + LIVE + LISTS * max_slices + 2 * max_tokens;
    b->count = b->one + max_slices;
    return kvd_device_put((void *)b->one, constant, CONSTANTS * max_slices * sizeof *constant, what,
                          err);
}

void kvd_step_batch_release(kvd_step_batch *b)
{
    kvd_device_release(&b->memory);
    *b = (kvd_step_batch){0};
}

int kvd_step_batch_upload_steps(kvd_step_batch *b, cudaStream_t stream, kvd_err *err)
{
    return kvd_queue_put(b->array, b->pinned, (LIVE + STEP_LISTS * b->max_slices) * sizeof(int32_t),
                         stream, what, err);
}

int kvd_step_batch_upload(kvd_step_batch *b, cudaStream_t stream, kvd_err *err)
{
    const size_t bytes = b->n_tokens * sizeof(uint32_t);
    return kvd_status(kvd_queue_put(b->array, b->pinned,
                                    (LIVE + LISTS * b->max_slices) * sizeof(int32_t), stream, what,
                                    err) ||
                      kvd_queue_put(b->device.id, b->host.id, bytes, stream, what, err) ||
                      kvd_queue_put(b->device.at, b->host.at, bytes, stream, what, err));
}
