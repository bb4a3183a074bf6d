/*
 * Assigns pages to slots (running requests) and keeps the page table, one row per request. Page
 * n_pages is the idle page of padding.
 */
#ifndef KVD_METHODS_CUDA_PAGES_H
#define KVD_METHODS_CUDA_PAGES_H

#include <stddef.h>
#include <stdint.h>

#include "common/cuda/memory.h"
#include "kernels/layout.h"

typedef struct {
    /* Page numbers [max_pages]: first .. held - 1 are valid; earlier ones left the window. */
    int32_t *page;
    size_t first, held;
    /* Serial number, which increases with every new request and every kvd_pages_keep. */
    uint64_t serial;
} kvd_page_slot;

typedef struct {
    size_t n_pages, n_slots, n_rows, max_pages;
    /* Stack of page numbers [n_pages], of which the first n_free are free. */
    int32_t *free;
    size_t n_free;
    uint64_t serial;
    kvd_page_slot *slot;
    /* Page table [n_rows][max_pages] in pinned host memory. */
    int32_t *table;
    int32_t *device;
    struct {
        /* Serial number of the slot whose pages this row lists, or 0 for the idle page alone. */
        uint64_t serial;
        size_t filled;
    } * row;
    /* First changed row, last one plus 1, and number of pages in the longest changed row. */
    size_t dirty_first, dirty_end, dirty_pages;
    kvd_device_memory memory;
} kvd_pages;

/* Allocates the tables. *p must be zeroed. The caller must release *p, also after a failure. */
int kvd_pages_init(kvd_pages *p, size_t n_pages, size_t n_slots, size_t n_rows, size_t max_pages,
                   kvd_err *err);
void kvd_pages_release(kvd_pages *p);
size_t kvd_pages_bytes(size_t n_rows, size_t max_pages);

static inline size_t kvd_larger(size_t a, size_t b)
{
    return a > b ? a : b;
}
static inline size_t kvd_smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}
/* Returns n rounded up to a multiple of `step`. */
static inline size_t kvd_rounded_up(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}
/* Returns the number of pages that hold `tokens` tokens. */
static inline size_t kvd_pages_of(size_t tokens)
{
    return (tokens + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
}

/*
 * Assigns pages to a running request (slot) until `tokens` tokens fit. `fresh` first frees the
 * request's pages. Fails if pages run out or exceed max_pages.
 */
int kvd_pages_hold(kvd_pages *p, size_t slot, size_t tokens, int fresh, kvd_err *err);
/*
 * Like kvd_pages_hold, for a running request (slot) whose tokens before `from` are no longer read.
 * Pages with only such tokens are freed or not assigned. If `from` decreases below freed pages,
 * frees all pages first.
 */
int kvd_pages_hold_from(kvd_pages *p, size_t slot, size_t from, size_t tokens, int fresh,
                        kvd_err *err);
/* Frees a running request's pages that hold only tokens before `from`. */
void kvd_pages_pass(kvd_pages *p, size_t slot, size_t from);
/* Frees a running request's pages after its first `tokens` tokens. */
void kvd_pages_keep(kvd_pages *p, size_t slot, size_t tokens);
void kvd_pages_give_back(kvd_pages *p, size_t slot);

/* Fill a row of the page table with a running request's pages or with the idle page. */
void kvd_pages_row(kvd_pages *p, size_t row, size_t slot);
void kvd_pages_row_idle(kvd_pages *p, size_t row);
/*
 * Queues the copy of the changed page table rows to the device. The table must not change until the
 * copy is done.
 */
int kvd_pages_upload(kvd_pages *p, cudaStream_t stream, kvd_err *err);

#endif
