/*
 * Times of the phases of an inference step (embedding, QKV product, attention, ...), named as in
 * the papers.
 *
 * The engine marks the end of a phase; the time since the previous mark belongs to that phase. Time
 * between two steps belongs to `host`. The residue, the total minus all phases, is a column of its
 * own and is never added to a phase.
 */
#ifndef KVD_FORMATS_PHASES_H
#define KVD_FORMATS_PHASES_H

typedef enum {
    KVD_PHASE_EMBED,
    KVD_PHASE_NORM, /* normalisation layers (RMSNorm or LayerNorm) */
    KVD_PHASE_QKV,  /* matrix product that makes Q, K and V */
    /* Bias, norms of Q and K, and RoPE, if they run in a kernel launch of their own. */
    KVD_PHASE_ROPE,
    /* Rotation and cut of Q and K to the kept dimensions, if it is a kernel launch of its own. */
    KVD_PHASE_ROTATE,
    /* Work that compresses the cache: decompositions, quantisation, choice of tokens. */
    KVD_PHASE_COMPRESS,
    /*
     * Store of new keys and values into the cache. Includes RoPE and rotation if one kernel does
     * all three.
     */
    KVD_PHASE_APPEND,
    /* Scheduling: computes which part of the attention each thread block of a kernel processes. */
    KVD_PHASE_SCHEDULE,
    KVD_PHASE_PREFILL, /* attention of prompts */
    KVD_PHASE_DECODE,  /* attention of decode steps, one new token per request */
    /*
     * Decompression of cached values, or keys rebuilt from vectors of fewer dimensions, if it is a
     * kernel launch of its own.
     */
    KVD_PHASE_RESTORE,
    KVD_PHASE_O,      /* output projection */
    KVD_PHASE_MLP,    /* feed-forward block */
    KVD_PHASE_HEAD,   /* final norm and logits */
    KVD_PHASE_SAMPLE, /* choice of the next token */
    KVD_PHASE_COMM,   /* sums and exchanges between GPUs */
    KVD_PHASE_HOST,   /* time in which the GPU is idle */
    KVD_PHASES
} kvd_phase;
/*
 * Returns the name of a phase, e.g. "qkv". The results column with the seconds of the phase has
 * this name plus "_s".
 */
const char *kvd_phase_column(kvd_phase p);

typedef struct {
    double part[KVD_PHASES]; /* seconds of each phase */
    double total;            /* seconds of the whole step, measured separately */
} kvd_phase_times;

/*
 * Returns the part of a step's time that no phase accounts for: the total minus the sum of all
 * phases, in seconds.
 */
double kvd_phase_residue(const kvd_phase_times *t);
void kvd_phase_add(kvd_phase_times *sum, const kvd_phase_times *t);

#endif
