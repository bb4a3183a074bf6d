#include "model/tokenizer/merge.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

int kvd_merge_add(kvd_merge_work *w, uint32_t id, kvd_err *err)
{
    if (w->n >= w->capacity) {
        void *array = w->symbol;
        if (w->n >= NONE - 1)
            return kvd_fail(err, "a text of more than %u symbols without a break", NONE - 1);
        if (kvd_grow(&array, &w->capacity, w->n + 1, sizeof *w->symbol, err))
            return -1;
        w->symbol = array;
    }
    w->symbol[w->n++].id = id;
    return 0;
}

/* Four children per node: flatter, and the children share a cache line. */
static void sift_down(kvd_merge_work *w, size_t i)
{
    const kvd_merge_candidate moving = w->heap[i];
    for (;;) {
        const size_t first = 4 * i + 1;
        if (first >= w->n_heap)
            break;
        const size_t end = first + 4 < w->n_heap ? first + 4 : w->n_heap;
        size_t best = first;
        for (size_t c = first + 1; c < end; c++)
            if (w->heap[c].order < w->heap[best].order)
                best = c;
        if (moving.order <= w->heap[best].order)
            break;
        w->heap[i] = w->heap[best];
        i = best;
    }
    w->heap[i] = moving;
}

static void sift_up(kvd_merge_work *w, size_t i)
{
    const kvd_merge_candidate moving = w->heap[i];
    while (i) {
        const size_t parent = (i - 1) / 4;
        if (w->heap[parent].order <= moving.order)
            break;
        w->heap[i] = w->heap[parent];
        i = parent;
    }
    w->heap[i] = moving;
}

static int append(kvd_merge_work *w, uint32_t priority, uint32_t at, uint32_t id, kvd_err *err)
{
    if (w->n_heap >= w->heap_capacity) {
        void *array = w->heap;
        if (kvd_grow(&array, &w->heap_capacity, w->n_heap + 1, sizeof *w->heap, err))
            return -1;
        w->heap = array;
    }
    w->heap[w->n_heap++] = (kvd_merge_candidate){(uint64_t)priority << 32 | at, id};
    return 0;
}

static void pop(kvd_merge_work *w)
{
    w->heap[0] = w->heap[--w->n_heap];
    if (w->n_heap)
        sift_down(w, 0);
}

int kvd_merge_all(kvd_merge_work *w, kvd_merge_rule rule, const void *context, kvd_err *err)
{
    uint32_t priority, id;
    w->n_heap = 0;
    for (size_t i = 0; i < w->n; i++) {
        kvd_symbol *s = &w->symbol[i];
        s->before = i ? (uint32_t)i - 1 : NONE;
        s->after = i + 1 < w->n ? (uint32_t)i + 1 : NONE;
        s->gone = false;
        if (i + 1 < w->n && rule(context, s->id, s[1].id, &priority, &id) &&
            append(w, priority, (uint32_t)i, id, err))
            return -1;
    }
    for (size_t i = w->n_heap / 4 + 1; i-- > 0;)
        if (i < w->n_heap)
            sift_down(w, i);

    while (w->n_heap) {
        const uint32_t at = (uint32_t)w->heap[0].order, joined = w->heap[0].id;
        kvd_symbol *left = &w->symbol[at];
        /* A candidate is stale when its pair has changed. One that has changed into another
         * pair with the same product still counts, as in Hugging Face tokenizers. */
        if (left->gone || left->after == NONE ||
            !rule(context, left->id, w->symbol[left->after].id, &priority, &id) || id != joined) {
            pop(w);
            continue;
        }
        pop(w);
        kvd_symbol *right = &w->symbol[left->after];
        left->id = joined;
        right->gone = true;
        left->after = right->after;
        if (right->after != NONE)
            w->symbol[right->after].before = at;
        if (left->before != NONE && rule(context, w->symbol[left->before].id, joined, &priority, &id)) {
            if (append(w, priority, left->before, id, err))
                return -1;
            sift_up(w, w->n_heap - 1);
        }
        if (left->after != NONE && rule(context, joined, w->symbol[left->after].id, &priority, &id)) {
            if (append(w, priority, at, id, err))
                return -1;
            sift_up(w, w->n_heap - 1);
        }
    }

    size_t kept = 0;
    for (size_t i = 0; i < w->n; i++)
        if (!w->symbol[i].gone)
            w->symbol[kept++].id = w->symbol[i].id;
    w->n = kept;
    return 0;
}

void kvd_merge_release(kvd_merge_work *w)
{
    free(w->symbol);
    free(w->heap);
    memset(w, 0, sizeof *w);
}
