#include "methods/cuda/pages.h"

#include <string.h>

static const char what[] = "pages of the cache";

size_t kvd_pages_bytes(size_t n_rows, size_t max_pages)
{
    return n_rows * max_pages * sizeof(int32_t);
}

/* Serial number that marks a row of the page table as never written. Written rows have serial
 * numbers from 0 on. */
enum { UNKNOWN = -1 };

int kvd_pages_init(kvd_pages *p, size_t n_pages, size_t n_slots, size_t n_rows, size_t max_pages,
                   kvd_err *err)
{
    const size_t bytes = kvd_pages_bytes(n_rows, max_pages);
    *p = (kvd_pages){
        .n_pages = n_pages, .n_slots = n_slots, .n_rows = n_rows, .max_pages = max_pages};
    kvd_device_memory *const m = &p->memory;
    p->free = kvd_device_host(m, n_pages * sizeof *p->free, what, err);
    p->slot = kvd_device_host(m, n_slots * sizeof *p->slot, what, err);
    p->row = kvd_device_host(m, n_rows * sizeof *p->row, what, err);
    int32_t *const all = kvd_device_host(m, n_slots * max_pages * sizeof *all, what, err);
    p->table = kvd_device_pinned(m, bytes, what, err);
    p->device = kvd_device_new(m, bytes, what, err);
    if (m->status)
        return -1;
    for (size_t i = 0; i < n_pages; i++)
        p->free[i] = (int32_t)(n_pages - 1 - i);
    p->n_free = n_pages;
    for (size_t s = 0; s < n_slots; s++)
        p->slot[s].page = all + s * max_pages;
    for (size_t r = 0; r < n_rows; r++)
        p->row[r].serial = (uint64_t)UNKNOWN;
    return 0;
}

void kvd_pages_release(kvd_pages *p)
{
    kvd_device_release(&p->memory);
    *p = (kvd_pages){0};
}

void kvd_pages_give_back(kvd_pages *p, size_t slot)
{
    kvd_page_slot *const s = &p->slot[slot];
    while (s->held > s->first)
        p->free[p->n_free++] = s->page[--s->held];
    s->first = s->held = 0;
    s->serial = 0;
}

void kvd_pages_keep(kvd_pages *p, size_t slot, size_t tokens)
{
    kvd_page_slot *const s = &p->slot[slot];
    if (s->held <= kvd_pages_of(tokens))
        return;
    while (s->held > kvd_pages_of(tokens))
        p->free[p->n_free++] = s->page[--s->held];
    /* A new serial number shows that rows of the page table written for this slot are outdated. */
    s->serial = ++p->serial;
}

void kvd_pages_pass(kvd_pages *p, size_t slot, size_t from)
{
    /* The page table of an ended request may still list freed pages; no kernel reads them. */
    kvd_page_slot *const s = &p->slot[slot];
    for (; s->first < s->held && s->first < from / KVD_PAGE_TOKENS; s->first++)
        p->free[p->n_free++] = s->page[s->first];
}

int kvd_pages_hold(kvd_pages *p, size_t slot, size_t tokens, int fresh, kvd_err *err)
{
    return kvd_pages_hold_from(p, slot, 0, tokens, fresh, err);
}

int kvd_pages_hold_from(kvd_pages *p, size_t slot, size_t from, size_t tokens, int fresh,
                        kvd_err *err)
{
    kvd_page_slot *const s = &p->slot[slot];
    const size_t need = kvd_pages_of(tokens), before = from / KVD_PAGE_TOKENS;
    if (fresh || s->serial == 0 || before < s->first) {
        kvd_pages_give_back(p, slot);
        s->serial = ++p->serial;
    }
    if (need > p->max_pages)
        return kvd_fail(err, "%zu tokens in slot %zu, which has room for %zu", tokens, slot,
                        p->max_pages * KVD_PAGE_TOKENS);
    kvd_pages_pass(p, slot, from);
    for (; s->first == s->held && s->first < before; s->first++)
        /* Page numbers before s->first are never read, so they get the padding page. */
        s->page[s->held++] = (int32_t)p->n_pages;
    for (; s->held < need; s->held++) {
        if (p->n_free == 0)
            return kvd_fail(err, "the cache has no page left for slot %zu: all %zu are in use",
                            slot, p->n_pages);
        s->page[s->held] = p->free[--p->n_free];
    }
    return 0;
}

/* Notes that the first `filled` page numbers of a row of the page table must be copied to the
 * device. */
static void touch(kvd_pages *p, size_t row, size_t filled)
{
    if (p->dirty_first == p->dirty_end) {
        p->dirty_first = row;
        p->dirty_end = row + 1;
        p->dirty_pages = 0;
    }
    p->dirty_first = row < p->dirty_first ? row : p->dirty_first;
    p->dirty_end = row >= p->dirty_end ? row + 1 : p->dirty_end;
    p->dirty_pages = filled > p->dirty_pages ? filled : p->dirty_pages;
    p->row[row].filled = filled;
}

void kvd_pages_row(kvd_pages *p, size_t row, size_t slot)
{
    const kvd_page_slot *const s = &p->slot[slot];
    if (p->row[row].serial == s->serial && p->row[row].filled == s->held)
        return;
    p->row[row].serial = s->serial;
    memcpy(p->table + row * p->max_pages, s->page, s->held * sizeof *p->table);
    touch(p, row, s->held);
}

void kvd_pages_row_idle(kvd_pages *p, size_t row)
{
    if (p->row[row].serial == 0)
        return;
    p->row[row].serial = 0;
    p->table[row * p->max_pages] = (int32_t)p->n_pages;
    touch(p, row, 1);
}

int kvd_pages_upload(kvd_pages *p, cudaStream_t stream, kvd_err *err)
{
    const size_t pitch = p->max_pages * sizeof *p->table, at = p->dirty_first * p->max_pages;
    const size_t rows = p->dirty_end - p->dirty_first;
    p->dirty_first = p->dirty_end = 0;
    return rows == 0 ? 0
                     : kvd_cuda_check(cudaMemcpy2DAsync(p->device + at, pitch, p->table + at, pitch,
                                                        p->dirty_pages * sizeof *p->table, rows,
                                                        cudaMemcpyHostToDevice, stream),
                                      what, err);
}
