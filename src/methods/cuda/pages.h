/*
 * Assigns the cache's pages to slots (running requests), and keeps the page table of an iteration,
 * with one row for each request. Changed rows are copied to the device. Page n_pages, one after the
 * last page that can be assigned, is the idle page, which padding uses.
 */
#ifndef KVD_METHODS_CUDA_PAGES_H
#define KVD_METHODS_CUDA_PAGES_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct {
    /*
     * [max_pages] Page numbers; elements `first` to held - 1 belong to this slot. Pages before
     * `first` were freed, because their tokens are older than a sliding window.
     */
    int32_t *page;
    size_t first, held;
    /*
     * Identifies the slot's request and pages. The number increases with every new request and with
     * every call of kvd_pages_keep.
     */
    uint64_t serial;
} kvd_page_slot;

typedef struct {
    size_t n_pages, n_slots, n_rows, max_pages;
    /* [n_pages] Stack of page numbers; the first n_free are free. */
    int32_t *free;
    size_t n_free;
    uint64_t serial;
    kvd_page_slot *slot;
    /* Page table [n_rows][max_pages] in pinned host memory. */
    int32_t *table;
    int32_t *device;
    struct {
        /*
         * Serial number of the slot whose pages this row of the page table lists. 0: the row lists
         * only the idle page.
         */
        uint64_t serial;
        size_t filled;
    } * row;
    /*
     * First changed row since the last upload, one after the last changed row, and number of pages
     * of the longest changed row.
     */
    size_t dirty_first, dirty_end, dirty_pages;
} kvd_pages;

/*
 * Initialises `*p`, which must be zeroed before. The caller must release `*p`, also after a
 * failure.
 */
int kvd_pages_init(kvd_pages *p, size_t n_pages, size_t n_slots, size_t n_rows, size_t max_pages,
                   kvd_err *err);
void kvd_pages_release(kvd_pages *p);
/* Returns the bytes of device memory for the page table. */
size_t kvd_pages_bytes(size_t n_rows, size_t max_pages);

/*
 * Assigns pages to a slot until they have room for `tokens` tokens. If `fresh` is set, frees all
 * pages of the slot first. Fails if no page is free, or if the slot would have more than max_pages.
 */
int kvd_pages_hold(kvd_pages *p, size_t slot, size_t tokens, int fresh, kvd_err *err);
/*
 * Does the same as kvd_pages_hold for a slot whose tokens before `from` are no longer read. Pages
 * that hold only tokens before `from` are freed or are never assigned. If `from` is smaller than in
 * an earlier call, so that freed pages are needed again, all pages of the slot are freed first.
 */
int kvd_pages_hold_from(kvd_pages *p, size_t slot, size_t from, size_t tokens, int fresh,
                        kvd_err *err);
/* Frees the pages of a slot that hold only tokens before `from`. */
void kvd_pages_pass(kvd_pages *p, size_t slot, size_t from);
/* Frees the pages of a slot that its first `tokens` tokens do not need. */
void kvd_pages_keep(kvd_pages *p, size_t slot, size_t tokens);
void kvd_pages_give_back(kvd_pages *p, size_t slot);

/*
 * These functions fill row `row` of the page table: kvd_pages_row with the pages of a slot,
 * kvd_pages_row_idle with the idle page.
 */
void kvd_pages_row(kvd_pages *p, size_t row, size_t slot);
void kvd_pages_row_idle(kvd_pages *p, size_t row);
/*
 * Queues the copy of changed rows to the device. The page table must not change until the caller
 * has waited for the stream.
 */
int kvd_pages_upload(kvd_pages *p, cudaStream_t stream, kvd_err *err);

#endif
