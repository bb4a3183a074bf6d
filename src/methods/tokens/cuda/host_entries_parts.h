/* Internal declarations for methods that drop some tokens and quantise the others: lists of each KV
 * head's cached tokens, in host memory. */
#ifndef KVD_METHODS_TOKENS_CUDA_HOST_ENTRIES_PARTS_H
#define KVD_METHODS_TOKENS_CUDA_HOST_ENTRIES_PARTS_H

#include "methods/cuda/cache_rows.h"
#include "methods/cuda/host_codes.h"

#define KVD_HOST_ENTRIES_WHAT "codes of kept tokens" /* in messages */

enum { KVD_HOST_ENTRIES_ROWS = 1 << 17 /* rows that are copied together */ };

/* Cached tokens of one KV head of a request. */
typedef struct {
    size_t m, room;
    size_t first;              /* entries from here on have a row; m if the GPU codes */
    size_t fresh;              /* entries from here on are new */
    size_t coded[KVD_N_SIDES]; /* entries that are coded, from the oldest on */
    double sum;                /* bits of all codes */
    double unseen;             /* bits of entries that the latest step no longer read */
    int64_t seen;              /* position of the newest token so far, or -1 */
    uint32_t *position;        /* [room] of each entry in the sequence */
    uint32_t *place;           /* [room] of each entry in the pages */
    double *bits[KVD_N_SIDES]; /* [room] bits of the codes */
    uint16_t *row;             /* [room - first][2 d] K and V, decoded where they are coded */
    uint32_t *state;           /* [KVD_N_SIDES][states] of the entropy coder */
    /* ready: number of cached tokens, from the oldest on, that are quantised or can be quantised
     * now, for K and for V. Tokens `from` to `end` - 1 must be written back to the cache. */
    size_t ready[KVD_N_SIDES], from, end;
    size_t at; /* first row of the head in kvd_host_entries.rows */
} kvd_head_entries;

/* Lists of one request's cached tokens, one list for each layer and KV head. */
typedef struct {
    kvd_head_entries *head; /* [layers][heads]; NULL: no request */
    bool prompt;            /* the latest iteration brought the prompt */
    double bits, unseen;
} kvd_slot_entries;

struct kvd_host_entries {
    kvd_gpu_method *method; /* borrowed */
    kvd_host_places places;
    size_t layers, heads, d, states, max_len;
    /* RoPE tables: `rope` applies RoPE, `back` undoes it. NULL unless keys are quantised before
     * RoPE. */
    float *rope, *back;
    /* [layers][heads][kept_rows] in pinned memory: positions of the prompt tokens that stay, or
     * NULL. */
    int32_t *kept;
    size_t kept_rows;
    kvd_slot_entries *slot;
    size_t n_slots;
    kvd_head_entries **list; /* [max_slices][layers][heads] heads of an iteration */
    uint32_t *positions;     /* pinned [layers][heads][places.room], of one slot */
    uint16_t *rows;          /* pinned [KVD_HOST_ENTRIES_ROWS][2 d] rows that are written */
    uint16_t *taken;         /* pinned [KVD_HOST_ENTRIES_ROWS][2 d] rows of new entries */
    uint16_t **k;            /* pinned [KVD_HOST_ENTRIES_ROWS] addresses in the pages */
    uint16_t *device_rows, **device_k;
    /* [KVD_HOST_ENTRIES_ROWS] Ranges of tokens that the GPU quantises, one per KV head, in pinned
     * and in device memory. NULL if the CPU quantises them. */
    kvd_cache_codes *codes, *device_codes;
    kvd_packed_form form;           /* of codes on the GPU */
    size_t group;                   /* of integer codes on the GPU */
    double token_bits[KVD_N_SIDES]; /* bits of a token's floating-point codes on the GPU */
    kvd_device_memory memory;
};

/* Updates a request's lists of cached tokens after an iteration with the new tokens *s. `row` is
 * the index of *s in the iteration. */
int kvd_host_entries_update(kvd_host_entries *e, const kvd_slice *s, size_t row, kvd_err *err);

#endif
