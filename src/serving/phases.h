/*
 * The parts of an inference step, named as in the papers, and a clock whose parts sum to what was measured.
 *
 * Whoever computes marks the end of a part; the time since the mark before it is that part's. Between two steps the time belongs to
 * `host`. What the parts leave of the whole step is the residue, a column of its own: it is never added to a part.
 */
#ifndef KVD_SERVING_PHASES_H
#define KVD_SERVING_PHASES_H

typedef enum {
    KVD_PHASE_EMBED,  /* embedding                                                                  */
    KVD_PHASE_NORM,   /* norms of the residual stream                                               */
    KVD_PHASE_QKV,    /* QKV generation: the product                                                */
    KVD_PHASE_ROPE,   /* bias, norms of Q and K, RoPE, where they are a launch of their own         */
    KVD_PHASE_ROTATE, /* rotation by R and cut of Q and K, where it is a launch of its own          */
    KVD_PHASE_COMPRESS, /* what a method does to make its cache smaller: decompositions, codes, choices of tokens */
    KVD_PHASE_APPEND, /* store into the cache; with RoPE and rotation where one launch does all three (see `fused`) */
    KVD_PHASE_SCHEDULE, /* work lists of the attention kernels                                        */
    KVD_PHASE_PREFILL,  /* attention of prompts                                                       */
    KVD_PHASE_DECODE,   /* attention of steps                                                         */
    KVD_PHASE_RESTORE,  /* decompression, or keys rebuilt from latents, where it is a launch of its own */
    KVD_PHASE_O,        /* output projection                                                          */
    KVD_PHASE_MLP,      /* feed-forward block                                                         */
    KVD_PHASE_HEAD,     /* final norm and logits                                                      */
    KVD_PHASE_SAMPLE,   /* choice of the next token                                                   */
    KVD_PHASE_COMM,     /* sums and exchanges between GPUs                                            */
    KVD_PHASE_HOST,     /* the device has nothing to do                                               */
    KVD_PHASES
} kvd_phase;
const char *kvd_phase_column(kvd_phase p); /* column of jct files: "qkv_s", ... without the "_s" */

typedef struct {
    double part[KVD_PHASES]; /* seconds                                               */
    double total;            /* seconds of the step, measured from outside the parts  */
} kvd_phase_times;

/* total - sum of parts, seconds */
double kvd_phase_residue(const kvd_phase_times *t);
void kvd_phase_add(kvd_phase_times *sum, const kvd_phase_times *t);

#endif
