/*
 * Which pages of the cache belong to which slot, and the page table of an iteration: a row for each of its slices. The host keeps both; rows
 * that changed are copied to the device.
 *
 * Page n_pages, one beyond those that are given out, is the idle page: rows that fill up a batch store there.
 */
#ifndef KVD_SERVING_CUDA_PAGES_H
#define KVD_SERVING_CUDA_PAGES_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct {
    int32_t *page; /* [max_pages] of the cache, the first `held` of them its own */
    size_t held;
    uint64_t serial; /* of the request that has it: rises with every one           */
} kvd_page_slot;

typedef struct {
    size_t n_pages, n_slots, n_rows, max_pages;
    int32_t *free; /* [n_pages], the first n_free are */
    size_t n_free;
    uint64_t serial;
    kvd_page_slot *slot; /* [n_slots] */
    int32_t *table;      /* pinned [n_rows][max_pages] */
    int32_t *device;     /* the same there             */
    struct {
        uint64_t serial; /* of the request whose pages stand in the row; 0: the idle page */
        size_t filled;
    } * row;
    size_t dirty_first, dirty_end, dirty_pages; /* rows, and pages of the longest */
} kvd_pages;

/* Zeroed before; release it whatever came back. */
int kvd_pages_init(kvd_pages *p, size_t n_pages, size_t n_slots, size_t n_rows, size_t max_pages,
                   kvd_err *err);
void kvd_pages_release(kvd_pages *p);
size_t kvd_pages_bytes(size_t n_rows, size_t max_pages); /* on the device */

/* Slot holds pages for `tokens` tokens; fresh: it is another request's from now on. Fails when no page is left, or when the slot would
 * have more than max_pages. */
int kvd_pages_hold(kvd_pages *p, size_t slot, size_t tokens, int fresh, kvd_err *err);
/* Slot needs pages for `tokens` tokens from now on; those behind them go back. */
void kvd_pages_keep(kvd_pages *p, size_t slot, size_t tokens);
void kvd_pages_give_back(kvd_pages *p, size_t slot);

/* Row of the table: the pages of a slot, or the idle page. */
void kvd_pages_row(kvd_pages *p, size_t row, size_t slot);
void kvd_pages_row_idle(kvd_pages *p, size_t row);
/* Queues the copy of what changed. The table must not change before the stream was waited for. */
int kvd_pages_upload(kvd_pages *p, cudaStream_t stream, kvd_err *err);

#endif
