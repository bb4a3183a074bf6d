#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

size_t kvd_tokens_budget(double value, size_t of)
{
    return value < 1 ? (size_t)(value * (double)of) : (size_t)value;
}

int kvd_tokens_check_budget(const char *key, double value, kvd_err *err)
{
    if (value < 1 || value <= floor(value))
        return 0;
    return kvd_fail(err, "%s = %g is neither a share below 1 nor a whole number of tokens", key, value);
}

/* Heap of the k best seen so far, the worst of them on top. */
static bool worse(const double *score, size_t a, size_t b)
{
    return a < b ? score[a] <= score[b] : score[a] < score[b];
}

static void sift(const double *score, size_t *heap, size_t n, size_t i)
{
    for (;;) {
        size_t least = i;
        for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < n; child++)
            if (worse(score, heap[child], heap[least]))
                least = child;
        if (least == i)
            return;
        const size_t held = heap[i];
        heap[i] = heap[least];
        heap[least] = held;
        i = least;
    }
}

int kvd_tokens_keep_top(const double *score, size_t n, size_t k, uint8_t *level, kvd_err *err)
{
    if (k >= n)
        return 0;
    size_t *const heap = malloc((k + 1) * sizeof *heap);
    if (!heap)
        return kvd_no_memory(err, "a selection of tokens", k * sizeof *heap);
    uint8_t *const was = malloc(n);
    if (!was) {
        free(heap);
        return kvd_no_memory(err, "a selection of tokens", n);
    }
    for (size_t i = 0; i < k; i++)
        heap[i] = i;
    for (size_t i = k / 2; i-- > 0;)
        sift(score, heap, k, i);
    for (size_t i = k; i < n && k > 0; i++)
        if (worse(score, heap[0], i)) {
            heap[0] = i;
            sift(score, heap, k, 0);
        }
    memcpy(was, level, n);
    memset(level, KVD_LEVEL_DROPPED, n);
    for (size_t i = 0; i < k; i++)
        level[heap[i]] = was[heap[i]];
    free(was);
    free(heap);
    return 0;
}

size_t kvd_tokens_least(const double *score, size_t n)
{
    size_t least = 0;
    for (size_t i = 1; i < n; i++)
        if (score[i] < score[least])
            least = i;
    return least;
}
