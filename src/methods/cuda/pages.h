/*
 * Assignment of the cache's pages to slots (running requests), and the page table of an iteration,
 * with one row for each request in the iteration. The host keeps both; changed rows are copied to
 * the device.
 *
 * Page n_pages, one after the pages that can be assigned, is the idle page: rows that only pad a
 * batch are stored there.
 */
#ifndef KVD_METHODS_CUDA_PAGES_H
#define KVD_METHODS_CUDA_PAGES_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct {
    /*
     * Page numbers, [max_pages]; first .. held - 1 belong to this slot. The pages before `first`
     * held tokens that are older than a sliding window, and were freed.
     */
    int32_t *page;
    size_t first, held;
    /*
     * Number that identifies the slot's request and pages. It increases with every new request and
     * with every kvd_pages_keep.
     */
    uint64_t serial;
} kvd_page_slot;

typedef struct {
    size_t n_pages, n_slots, n_rows, max_pages;
    /* Stack of page numbers, [n_pages]; the first n_free are free. */
    int32_t *free;
    size_t n_free;
    uint64_t serial;
    kvd_page_slot *slot; /* pages of each slot, [n_slots] */
    /* Page table in pinned host memory, [n_rows][max_pages]. */
    int32_t *table;
    int32_t *device; /* copy of the table on the device */
    struct {
        /*
         * Serial number of the slot whose pages are in this row of the page table. 0: the row lists
         * no slot's pages, only the idle page.
         */
        uint64_t serial;
        size_t filled;
    } * row;
    /*
     * Range of rows of the page table that have changed since the last upload, and number of pages
     * of the longest of these rows.
     */
    size_t dirty_first, dirty_end, dirty_pages;
} kvd_pages;

/* Allocates the tables. *p must be zeroed before; the caller releases it, also after a failure. */
int kvd_pages_init(kvd_pages *p, size_t n_pages, size_t n_slots, size_t n_rows, size_t max_pages,
                   kvd_err *err);
void kvd_pages_release(kvd_pages *p);
/* Bytes of device memory for the page table. */
size_t kvd_pages_bytes(size_t n_rows, size_t max_pages);

/*
 * Assigns pages to a slot until they have room for `tokens` tokens. If `fresh` is set, the slot
 * first gives up the pages of its last request. Fails if no page is free, or if the slot would have
 * more than max_pages.
 */
int kvd_pages_hold(kvd_pages *p, size_t slot, size_t tokens, int fresh, kvd_err *err);
/*
 * Does the same as kvd_pages_hold for a slot whose tokens before token `from` are not read any
 * more. Pages that hold only such tokens are freed, and none are assigned for them. If the slot
 * needs pages that it freed before, because `from` is smaller now, it first gives up all its pages.
 */
int kvd_pages_hold_from(kvd_pages *p, size_t slot, size_t from, size_t tokens, int fresh,
                        kvd_err *err);
/* Frees the pages of a slot that hold only tokens before token `from`. */
void kvd_pages_pass(kvd_pages *p, size_t slot, size_t from);
/* Frees the pages of a slot that are not needed for its first `tokens` tokens. */
void kvd_pages_keep(kvd_pages *p, size_t slot, size_t tokens);
void kvd_pages_give_back(kvd_pages *p, size_t slot);

/*
 * kvd_pages_row fills a row of the page table with the pages of a slot, kvd_pages_row_idle with the
 * idle page.
 */
void kvd_pages_row(kvd_pages *p, size_t row, size_t slot);
void kvd_pages_row_idle(kvd_pages *p, size_t row);
/*
 * Queues the copy of the changed rows of the page table to the device. The table must not change
 * until the caller has waited for the stream.
 */
int kvd_pages_upload(kvd_pages *p, cudaStream_t stream, kvd_err *err);

#endif
