/* Assigns pages to running requests. Dummy requests that pad a batch use page number n_pages. */
#ifndef KVD_METHODS_CUDA_PAGES_H
#define KVD_METHODS_CUDA_PAGES_H

#include <stddef.h>
#include <stdint.h>

#include "common/cuda/memory.h"
#include "kernels/layout.h"

typedef struct {
    /* [max_pages] Page numbers. The elements from `first` to held - 1 are valid. Earlier pages have
     * left the sliding window. */
    int32_t *page;
    size_t first, held;
    /* Version number of the slot's list of pages. A new request and kvd_pages_keep increase it. */
    uint64_t serial;
} kvd_page_slot;

typedef struct {
    size_t n_pages, n_slots, n_rows, max_pages;
    /* [n_pages] Stack of page numbers, of which the first n_free are free. */
    int32_t *free;
    size_t n_free;
    uint64_t serial;
    kvd_page_slot *slot;
    /* [n_rows][max_pages] Page table in pinned host memory. */
    int32_t *table;
    int32_t *device;
    struct {
        /* Version number of the list of pages from which this row was filled. 0: the row has only
         * the padding page. */
        uint64_t serial;
        size_t filled;
    } * row;
    /* Changed rows of the table: index of the first, index of the last plus 1, and largest number
     * of pages in a changed row. */
    size_t dirty_first, dirty_end, dirty_pages;
    kvd_device_memory memory;
} kvd_pages;

/* Allocates the page table and the list of free pages. *p must be zeroed. The caller must release
 * *p even after a failure. */
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

/* Assigns pages for `tokens` tokens to the request in `slot`. If `fresh`, frees its old pages
 * first. Fails if pages run out. */
int kvd_pages_hold(kvd_pages *p, size_t slot, size_t tokens, int fresh, kvd_err *err);
/* Gives the request in `slot` pages for its tokens `from` .. `tokens` - 1. Frees its pages that
 * hold only tokens before `from`. If `fresh`, frees all its old pages first. Fails if pages run
 * out. */
int kvd_pages_hold_from(kvd_pages *p, size_t slot, size_t from, size_t tokens, int fresh,
                        kvd_err *err);
/* Frees a request's pages that hold only tokens before `from`. */
void kvd_pages_pass(kvd_pages *p, size_t slot, size_t from);
/* Keeps the pages of a request's first `tokens` tokens, and frees its other pages. */
void kvd_pages_keep(kvd_pages *p, size_t slot, size_t tokens);
void kvd_pages_give_back(kvd_pages *p, size_t slot);

/* Writes the page numbers of the request in `slot` to row `row` of the page table. */
void kvd_pages_row(kvd_pages *p, size_t row, size_t slot);
/* Fills row `row` of the page table, which belongs to no request, with the number of the padding
 * page (a dummy page). */
void kvd_pages_row_idle(kvd_pages *p, size_t row);
/* Starts copying changed parts of the page table, which must not change before the copy ends. */
int kvd_pages_upload(kvd_pages *p, cudaStream_t stream, kvd_err *err);

#endif
