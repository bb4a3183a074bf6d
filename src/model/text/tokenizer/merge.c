/* Merges neighbouring symbols of a word in byte-pair encoding. */
#include "model/text/tokenizer/steps.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/run.h"

#define NONE UINT32_MAX

/* number of symbols after which merging of a word begins, even if the word is not complete */
#define PART 4096

/* number of BPE merges between two checks whether the user has interrupted the program */
#define STEPS 16384

#define PAIR_BITS    ((size_t)1 << 21)
#define LONGEST_PAIR 16

struct kvd_pair_set {
    uint64_t bit[PAIR_BITS / 64];
};

kvd_pair_set *kvd_pair_set_new(kvd_err *err)
{
    kvd_pair_set *set = calloc(1, sizeof *set);
    if (!set)
        kvd_no_memory(err, "pairs of characters", sizeof *set);
    return set;
}

void kvd_pair_set_free(kvd_pair_set *set)
{
    free(set);
}

static bool continues(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Returns the length in bytes of the first character of s, which may be invalid UTF-8. */
static size_t character(const char *s, size_t len)
{
    size_t n = 1;
    while (n < len && continues(s[n]))
        n++;
    return n;
}

static size_t pair_slot(const char *pair, size_t len)
{
    return (size_t)XXH3_64bits(pair, len) & (PAIR_BITS - 1);
}

void kvd_pair_set_add(kvd_pair_set *set, const char *product, size_t len)
{
    for (size_t at = 0, left; at < len; at += left) {
        left = character(product + at, len - at);
        if (at + left == len)
            break;
        const size_t both = left + character(product + at + left, len - at - left);
        const size_t slot = pair_slot(product + at, both);
        if (both <= LONGEST_PAIR)
            set->bit[slot / 64] |= (uint64_t)1 << slot % 64;
    }
}

/* Returns true if no merge can cross the boundary between the symbols `left` and `right`. */
static bool apart(const kvd_merge_model *m, uint32_t left, uint32_t right)
{
    size_t n_left, n_right;
    const char *l = kvd_vocab_piece(m->vocab, left, &n_left),
               *r = kvd_vocab_piece(m->vocab, right, &n_right);
    if (!l || !r || !n_left || !n_right || continues(r[0]))
        return false;
    size_t at = n_left - 1;
    while (at && continues(l[at]))
        at--;
    n_left -= at;
    n_right = character(r, n_right);
    if (continues(l[at]) || n_left + n_right > LONGEST_PAIR)
        return false;
    char pair[LONGEST_PAIR];
    memcpy(pair, l + at, n_left);
    memcpy(pair + n_left, r, n_right);
    const size_t slot = pair_slot(pair, n_left + n_right);
    return !(m->pairs->bit[slot / 64] >> slot % 64 & 1);
}

/* Restores the heap below node i. A node has four children. */
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
        if (kvd_grow(&w->heap, &w->heap_capacity, w->n_heap + 1, sizeof *w->heap, err))
            return -1;
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

static int join(kvd_merge_work *w, size_t n, kvd_err *err)
{
    const kvd_merge_rule rule = w->model->rule;
    const void *const context = w->model->context;
    uint32_t priority, id;
    w->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % STEPS == 0 && kvd_interrupted())
            return kvd_fail_interrupted(err);
        kvd_symbol *s = &w->symbol[i];
        s->before = i ? (uint32_t)i - 1 : NONE;
        s->after = i + 1 < n ? (uint32_t)i + 1 : NONE;
        s->gone = false;
        if (i + 1 < n && rule(context, s->id, s[1].id, &priority, &id) &&
            append(w, priority, (uint32_t)i, id, err))
            return -1;
    }
    for (size_t i = w->n_heap / 4 + 1; i-- > 0;) {
        if (i % STEPS == STEPS - 1 && kvd_interrupted())
            return kvd_fail_interrupted(err);
        if (i < w->n_heap)
            sift_down(w, i);
    }

    for (size_t steps = 1; w->n_heap; steps++) {
        if (steps % STEPS == 0 && kvd_interrupted())
            return kvd_fail_interrupted(err);
        const uint32_t at = (uint32_t)w->heap[0].order, joined = w->heap[0].id;
        kvd_symbol *left = &w->symbol[at];
        /* Skips a merge if an earlier merge has replaced one of its two symbols. */
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
        if (left->before != NONE &&
            rule(context, w->symbol[left->before].id, joined, &priority, &id)) {
            if (append(w, priority, left->before, id, err))
                return -1;
            sift_up(w, w->n_heap - 1);
        }
        if (left->after != NONE &&
            rule(context, joined, w->symbol[left->after].id, &priority, &id)) {
            if (append(w, priority, at, id, err))
                return -1;
            sift_up(w, w->n_heap - 1);
        }
    }

    for (size_t i = 0; i < n; i++)
        if (!w->symbol[i].gone && kvd_ids_push(w->ids, w->symbol[i].id, err))
            return -1;
    w->n -= n;
    if (w->n)
        memmove(w->symbol, w->symbol + n, w->n * sizeof *w->symbol);
    return 0;
}

/* Returns the number of symbols before the last boundary that no merge can cross. */
static size_t last_boundary(const kvd_merge_work *w)
{
    for (size_t i = w->n; i-- > 1;)
        if (apart(w->model, w->symbol[i - 1].id, w->symbol[i].id))
            return i;
    return 0;
}

void kvd_merge_start(kvd_merge_work *w, const kvd_merge_model *model, kvd_ids *ids)
{
    w->model = model;
    w->ids = ids;
    w->n = 0;
    w->full = PART;
}

int kvd_merge_add(kvd_merge_work *w, uint32_t id, kvd_err *err)
{
    if (w->n >= w->full) {
        const size_t n = last_boundary(w);
        if (n && join(w, n, err))
            return -1;
        /* Merges an unfinished word again only when it has twice as many symbols, to keep the total
         * time linear. */
        w->full = 2 * w->n > PART ? 2 * w->n : PART;
    }
    if (w->n >= w->capacity) {
        if (w->n >= NONE - 1)
            return kvd_fail(err, "a text of more than %u symbols without a break", NONE - 1);
        if (kvd_grow(&w->symbol, &w->capacity, w->n + 1, sizeof *w->symbol, err))
            return -1;
    }
    w->symbol[w->n++].id = id;
    return 0;
}

int kvd_merge_end(kvd_merge_work *w, bool open, kvd_err *err)
{
    return join(w, open ? last_boundary(w) : w->n, err);
}

void kvd_merge_release(kvd_merge_work *w)
{
    free(w->symbol);
    free(w->heap);
    memset(w, 0, sizeof *w);
}
