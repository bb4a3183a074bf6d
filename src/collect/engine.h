/*
 * What runs the model for kvdim-collect and adds what comes out to sums and dump: one on the CPU (engine_cpu.c), one on
 * GPUs (cuda/engine_cuda.c). kvdim_collect.c decides which sequences run, when sums are saved, and when to stop.
 */
#ifndef KVD_COLLECT_ENGINE_H
#define KVD_COLLECT_ENGINE_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/activations.h"
#include "formats/attention.h"
#include "formats/fisher.h"
#include "formats/moments.h"
#include "model/checkpoint.h"
#include "model/forward.h"

typedef struct {
    const kvd_checkpoint *checkpoint; /* borrowed */
    size_t max_tokens, max_len;
    int first_layer, last_layer;
    bool pre;                   /* Q and K before RoPE too                         */
    kvd_activations *dump;      /* borrowed; NULL: none                            */
    kvd_moments *sums;          /* borrowed, allocated; NULL: none                 */
    kvd_attention_stats *stats; /* borrowed, allocated; NULL: none. The CPU's alone */
    kvd_fisher *fisher;         /* borrowed, created; NULL: none. The CPU's alone    */
    int threads;
    kvd_dtype compute; /* of the GPU pass: KVD_F32 or KVD_BF16            */
    int first_gpu, n_gpus;
} kvd_collect_spec;

/*
 * Seconds so far in run. forward is without the others; what overlaps with it counts only as far as the pass waited. On several
 * GPUs record and write are those of the first.
 */
typedef struct {
    double forward, backward, record, write; /* backward: with what it computes again, and its sums */
} kvd_collect_times;

typedef struct kvd_collect_engine kvd_collect_engine;
struct kvd_collect_engine {
    /* W_O and W_V of the layers asked for, into dump and sums. */
    int (*weights)(kvd_collect_engine *e, kvd_err *err);
    /*
     * A batch, whose first token is first_token of the dump. into: the sums that it is added to (spec.sums, or others of the
     * same shape for a snapshot); NULL: none. to_dump: whether it is written, and added
     * to spec.stats and spec.fisher. give_up is asked between layers;
     * when it says yes the call fails with its message. After a failure sums and stats are of no use, nor are the batch's rows of the dump.
     */
    int (*run)(kvd_collect_engine *e, const kvd_batch *b, size_t first_token, kvd_moments *into, bool to_dump,
               int (*give_up)(void *ctx, kvd_err *err), void *ctx, kvd_err *err);
    /* After it, sums and dump hold all that was run. Called before they are read or saved; sums other than spec.sums may be
     * changed by the caller then, until the next run. */
    int (*settle)(kvd_collect_engine *e, kvd_err *err);
    void (*free)(kvd_collect_engine *e);
    /* What runs, for people; valid until free. */
    const char *(*describe)(const kvd_collect_engine *e);
    kvd_collect_times times;
};

/* NULL with *err. */
kvd_collect_engine *kvd_collect_engine_cpu(const kvd_collect_spec *s, kvd_err *err);
kvd_collect_engine *kvd_collect_engine_cuda(const kvd_collect_spec *s, kvd_err *err);

/* Tokens of a batch when nobody asked for a number: what the card has memory for, of that kind and not of the hour. */
int kvd_engine_cuda_batch(const kvd_config *c, kvd_dtype compute, int first_gpu, int n_gpus, size_t seq_len,
                          size_t *batch, kvd_err *err);

#endif
