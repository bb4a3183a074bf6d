/*
 * Assignment of the cache's pages to slots, and the page table of an iteration with one row for
 * each of its slices. The host keeps both; changed rows are copied to the device.
 *
 * Page n_pages, one after the pages that are assigned, is the idle page: rows that pad a batch are
 * stored there.
 */
#ifndef KVD_METHODS_CUDA_PAGES_H
#define KVD_METHODS_CUDA_PAGES_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct {
    int32_t *page; /* [max_pages] page numbers; the first `held` belong to this slot */
    size_t held;
    /*
     * Number that identifies the slot's request and pages: increases with every request and
     * kvd_pages_keep.
     */
    uint64_t serial;
} kvd_page_slot;

typedef struct {
    size_t n_pages, n_slots, n_rows, max_pages;
    int32_t *free; /* [n_pages] stack of page numbers; the first n_free are free */
    size_t n_free;
    uint64_t serial;
    kvd_page_slot *slot; /* [n_slots] */
    int32_t *table;      /* page table on the host, pinned [n_rows][max_pages] */
    int32_t *device;     /* copy of the table on the device */
    struct {
        uint64_t serial; /* serial of the slot whose pages are in the row; 0: the idle page */
        size_t filled;
    } * row;
    /* Range of changed table rows, and number of pages of the longest of them. */
    size_t dirty_first, dirty_end, dirty_pages;
} kvd_pages;

/* Allocates the tables. *p must be zeroed before; release it after a failure too. */
int kvd_pages_init(kvd_pages *p, size_t n_pages, size_t n_slots, size_t n_rows, size_t max_pages,
                   kvd_err *err);
void kvd_pages_release(kvd_pages *p);
size_t kvd_pages_bytes(size_t n_rows, size_t max_pages); /* bytes of device memory */

/*
 * Assigns pages to a slot until they have room for `tokens` tokens. With `fresh` the slot is first
 * emptied for another request. Fails if no page is free, or if the slot would have more than
 * max_pages.
 */
int kvd_pages_hold(kvd_pages *p, size_t slot, size_t tokens, int fresh, kvd_err *err);
/* Frees the pages of a slot that are not needed for its first `tokens` tokens. */
void kvd_pages_keep(kvd_pages *p, size_t slot, size_t tokens);
void kvd_pages_give_back(kvd_pages *p, size_t slot);

/* Fills a row of the page table with the pages of a slot, or with the idle page. */
void kvd_pages_row(kvd_pages *p, size_t row, size_t slot);
void kvd_pages_row_idle(kvd_pages *p, size_t row);
/*
 * Queues the copy of the changed rows of the page table to the device. The table must not change
 * until the caller has waited for the stream.
 */
int kvd_pages_upload(kvd_pages *p, cudaStream_t stream, kvd_err *err);

#endif
