#include "model/text/tokenizer/steps.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int kvd_vocab_add(kvd_vocab *v, const char *piece, size_t len, uint32_t id, kvd_err *err)
{
    void *array = v->entry;
    if (len > UINT32_MAX || v->n >= UINT32_MAX / 4)
        return kvd_fail(err, "vocabulary too large: %zu pieces, a piece of %zu bytes", v->n, len);
    if (kvd_grow(&array, &v->capacity, v->n + 1, sizeof *v->entry, err))
        return -1;
    v->entry = array;
    v->entry[v->n++] = (kvd_vocab_entry){v->text.n, (uint32_t)len, id};
    if (len > v->longest)
        v->longest = len;
    return kvd_buffer_add(&v->text, piece, len, err);
}

static int by_id(const void *a, const void *b)
{
    const kvd_vocab_entry *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* Returns the slot of a piece, or the free slot in which it would be stored. */
static uint32_t *find_slot(const kvd_vocab *v, const char *piece, size_t len)
{
    size_t i = (size_t)XXH3_64bits(piece, len) & (v->n_slots - 1);
    while (v->slot[i]) {
        const kvd_vocab_entry *e = &v->entry[v->slot[i] - 1];
        if (e->len == len && !memcmp(v->text.s + e->begin, piece, len))
            break;
        i = (i + 1) & (v->n_slots - 1);
    }
    return &v->slot[i];
}

int kvd_vocab_build(kvd_vocab *v, kvd_err *err)
{
    if (v->n)
        qsort(v->entry, v->n, sizeof *v->entry, by_id);
    for (v->n_slots = 16; v->n_slots < 2 * v->n;)
        v->n_slots *= 2;
    v->slot = calloc(v->n_slots, sizeof *v->slot);
    if (!v->slot)
        return kvd_no_memory(err, "the vocabulary", v->n_slots * sizeof *v->slot);
    for (size_t i = 0; i < v->n; i++) {
        const kvd_vocab_entry *e = &v->entry[i];
        const char *piece = v->text.s ? v->text.s + e->begin : "";
        const int shown = (int)(e->len < 100 ? e->len : 100);
        if (i && v->entry[i - 1].id == e->id)
            return kvd_fail(err, "two pieces have id %u, one is '%.*s'", e->id, shown, piece);
        uint32_t *slot = find_slot(v, piece, e->len);
        if (*slot)
            return kvd_fail(err, "piece '%.*s' has two ids, %u and %u", shown, piece,
                            v->entry[*slot - 1].id, e->id);
        *slot = (uint32_t)i + 1;
    }
    return 0;
}

void kvd_vocab_release(kvd_vocab *v)
{
    kvd_buffer_release(&v->text);
    free(v->entry);
    free(v->slot);
    memset(v, 0, sizeof *v);
}

bool kvd_vocab_find(const kvd_vocab *v, const char *piece, size_t len, uint32_t *id)
{
    if (len > v->longest)
        return false;
    const uint32_t slot = *find_slot(v, piece, len);
    if (!slot)
        return false;
    *id = v->entry[slot - 1].id;
    return true;
}

const char *kvd_vocab_piece(const kvd_vocab *v, uint32_t id, size_t *len)
{
    const kvd_vocab_entry key = {.id = id};
    const kvd_vocab_entry *e = NULL;
    if (id < v->n && v->entry[id].id == id) /* the usual case: no unused id before it */
        e = &v->entry[id];
    else if (v->n)
        e = bsearch(&key, v->entry, v->n, sizeof key, by_id);
    if (!e)
        return NULL;
    *len = e->len;
    return v->text.s ? v->text.s + e->begin : "";
}

size_t kvd_vocab_end(const kvd_vocab *v)
{
    return v->n ? (size_t)v->entry[v->n - 1].id + 1 : 0;
}
