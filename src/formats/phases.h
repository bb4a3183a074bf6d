/*
 * Phases of an inference step, named as in the papers, and their times.
 *
 * The engine marks the end of a phase; the time since the previous mark belongs to that phase. Time
 * between two steps belongs to `host`. The residue, the total minus all phases, is a column of its
 * own and is never added to a phase.
 */
#ifndef KVD_FORMATS_PHASES_H
#define KVD_FORMATS_PHASES_H

typedef enum {
    KVD_PHASE_EMBED,  /* embedding */
    KVD_PHASE_NORM,   /* norms of the residual stream */
    KVD_PHASE_QKV,    /* matrix product that makes Q, K and V */
    KVD_PHASE_ROPE,   /* bias, norms of Q and K, and RoPE, if they are a launch of their own */
    KVD_PHASE_ROTATE, /* rotation and cut of Q and K, if they are a launch of their own */
    /* work of a method that shrinks its cache: decompositions, codes, choice of tokens */
    KVD_PHASE_COMPRESS,
    /* store into the cache, including RoPE and rotation if one launch does all three */
    KVD_PHASE_APPEND,
    KVD_PHASE_SCHEDULE, /* work lists of the attention kernels */
    KVD_PHASE_PREFILL,  /* attention of prompts */
    KVD_PHASE_DECODE,   /* attention of steps */
    /* decompression, or keys rebuilt from latents, if it is a launch of its own */
    KVD_PHASE_RESTORE,
    KVD_PHASE_O,      /* output projection */
    KVD_PHASE_MLP,    /* feed-forward block */
    KVD_PHASE_HEAD,   /* final norm and logits */
    KVD_PHASE_SAMPLE, /* choice of the next token */
    KVD_PHASE_COMM,   /* sums and exchanges between GPUs */
    KVD_PHASE_HOST,   /* the device is idle */
    KVD_PHASES
} kvd_phase;
/*
 * Returns the name of a phase, e.g. "qkv". The column in kvdim/jct files has this name plus "_s".
 */
const char *kvd_phase_column(kvd_phase p);

typedef struct {
    double part[KVD_PHASES]; /* seconds */
    double total;            /* seconds of the whole step, measured separately */
} kvd_phase_times;

/* Returns the total minus the sum of all phases, in seconds. */
double kvd_phase_residue(const kvd_phase_times *t);
void kvd_phase_add(kvd_phase_times *sum, const kvd_phase_times *t);

#endif
