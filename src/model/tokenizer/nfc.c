#include "model/tokenizer/nfc.h"

#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "model/tokenizer/unicode_table.h"

/* Hangul syllables are arithmetic (Unicode standard, section 3.12). */
enum {
    S_BASE = 0xac00,
    L_BASE = 0x1100,
    V_BASE = 0x1161,
    T_BASE = 0x11a7,
    L_COUNT = 19,
    V_COUNT = 21,
    T_COUNT = 28
};
#define S_COUNT (L_COUNT * V_COUNT * T_COUNT)

typedef struct {
    uint32_t code;
    uint8_t combining;
} mark;

/* The characters since the last one that no later character can change. */
typedef struct {
    mark *c;
    size_t n, capacity;
} run;

static uint8_t combining_class(uint32_t code)
{
    size_t low = 0, high = kvd_unicode_n_classes;
    if (code < kvd_unicode_classes[0].first)
        return 0;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (code > kvd_unicode_classes[mid].last)
            low = mid + 1;
        else if (code < kvd_unicode_classes[mid].first)
            high = mid;
        else
            return kvd_unicode_classes[mid].combining;
    }
    return 0;
}

static const kvd_unicode_pair *decomposition(uint32_t code)
{
    size_t low = 0, high = kvd_unicode_n_pairs;
    if (code < kvd_unicode_pairs[0].code)
        return NULL;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (code > kvd_unicode_pairs[mid].code)
            low = mid + 1;
        else if (code < kvd_unicode_pairs[mid].code)
            high = mid;
        else
            return &kvd_unicode_pairs[mid];
    }
    return NULL;
}

/* The character that a and b become, or 0. */
static uint32_t composition(uint32_t a, uint32_t b)
{
    if (a - L_BASE < L_COUNT && b - V_BASE < V_COUNT)
        return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
    if (a - S_BASE < S_COUNT && (a - S_BASE) % T_COUNT == 0 && b - T_BASE - 1 < T_COUNT - 1)
        return a + (b - T_BASE);
    size_t low = 0, high = kvd_unicode_n_compositions;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        const kvd_unicode_pair *pair = &kvd_unicode_compositions[mid];
        if (pair->a < a || (pair->a == a && pair->b < b))
            low = mid + 1;
        else if (pair->a == a && pair->b == b)
            return pair->code;
        else
            high = mid;
    }
    return 0;
}

static int add(run *r, uint32_t code, kvd_err *err)
{
    void *array = r->c;
    if (kvd_grow(&array, &r->capacity, r->n + 1, sizeof *r->c, err))
        return -1;
    r->c = array;
    r->c[r->n++] = (mark){code, combining_class(code)};
    return 0;
}

static int add_decomposed(run *r, uint32_t code, kvd_err *err)
{
    if (code - S_BASE < S_COUNT) {
        const uint32_t s = code - S_BASE;
        if (add(r, L_BASE + s / (V_COUNT * T_COUNT), err) ||
            add(r, V_BASE + s % (V_COUNT * T_COUNT) / T_COUNT, err))
            return -1;
        return s % T_COUNT ? add(r, T_BASE + s % T_COUNT, err) : 0;
    }
    const kvd_unicode_pair *pair = decomposition(code);
    if (!pair)
        return add(r, code, err);
    /* depth is bounded by the table: at most four steps in Unicode */
    if (add_decomposed(r, pair->a, err))
        return -1;
    return pair->b ? add_decomposed(r, pair->b, err) : 0;
}

static int by_class(const void *a, const void *b)
{
    const mark *x = a, *y = b;
    return x->combining - y->combining;
}

/* Sorts marks behind each starter by class, equal classes keep their order. */
static int order(run *r, kvd_err *err)
{
    for (size_t i = 0; i < r->n;) {
        if (!r->c[i].combining) {
            i++;
            continue;
        }
        size_t j = i;
        bool sorted = true;
        for (; j < r->n && r->c[j].combining; j++)
            sorted = sorted && (j == i || r->c[j - 1].combining <= r->c[j].combining);
        if (!sorted && j - i <= 32) {
            for (size_t k = i + 1; k < j; k++)
                for (size_t m = k; m > i && by_class(&r->c[m - 1], &r->c[m]) > 0; m--) {
                    const mark t = r->c[m];
                    r->c[m] = r->c[m - 1];
                    r->c[m - 1] = t;
                }
        } else if (!sorted) {
            /* counting sort: hostile texts pile up marks by the thousand */
            mark *copy = malloc((j - i) * sizeof *copy);
            if (!copy)
                return kvd_no_memory(err, "combining marks", (j - i) * sizeof *copy);
            size_t at[257] = {0};
            for (size_t k = i; k < j; k++)
                at[r->c[k].combining + 1]++;
            for (size_t c = 1; c < 257; c++)
                at[c] += at[c - 1];
            for (size_t k = i; k < j; k++)
                copy[at[r->c[k].combining]++] = r->c[k];
            memcpy(r->c + i, copy, (j - i) * sizeof *copy);
            free(copy);
        }
        i = j;
    }
    return 0;
}

static void compose_run(run *r)
{
    size_t kept = 0, starter = SIZE_MAX;
    for (size_t i = 0; i < r->n; i++) {
        const mark c = r->c[i];
        /* blocked: something between the starter and c with a class not below c's */
        const bool adjacent = starter != SIZE_MAX && kept == starter + 1;
        const bool free_way =
            starter != SIZE_MAX && (adjacent || (c.combining && r->c[kept - 1].combining < c.combining));
        const uint32_t both = free_way ? composition(r->c[starter].code, c.code) : 0;
        if (both) {
            r->c[starter].code = both;
            continue;
        }
        if (!c.combining)
            starter = kept;
        r->c[kept++] = c;
    }
    r->n = kept;
}

static int flush(run *r, bool compose, kvd_buffer *out, kvd_err *err)
{
    if (order(r, err))
        return -1;
    if (compose)
        compose_run(r);
    for (size_t i = 0; i < r->n; i++) {
        char utf8[4];
        if (kvd_buffer_add(out, utf8, kvd_utf8_encode(r->c[i].code, utf8), err))
            return -1;
    }
    r->n = 0;
    return 0;
}

int kvd_canonical_form(const char *s, size_t len, bool compose, kvd_buffer *out, kvd_err *err)
{
    run r = {0};
    int rc = -1;
    /* Below U+00C0 nothing decomposes and nothing composes, unless a mark (U+0300 or later)
     * follows; below U+0300 nothing changes in NFC. */
    const uint32_t inert = compose ? 0x300 : 0xc0;
    size_t i = 0, plain = 0;
    while (i < len) {
        unsigned width;
        uint32_t code = kvd_utf8_decode(s + i, &width);
        if (code < inert) {
            i += width;
            continue;
        }
        /* the character before may take this one in */
        size_t from = i;
        if (from > plain)
            from = kvd_utf8_before(s, from);
        if (kvd_buffer_add(out, s + plain, from - plain, err))
            goto done;
        while (from < len) {
            code = kvd_utf8_decode(s + from, &width);
            if (code < inert && from > i)
                break;
            if (add_decomposed(&r, code, err))
                goto done;
            from += width;
        }
        if (flush(&r, compose, out, err))
            goto done;
        i = plain = from;
    }
    rc = kvd_buffer_add(out, s + plain, len - plain, err);
done:
    free(r.c);
    return rc;
}
