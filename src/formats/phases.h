/*
 * Times of the phases of an inference step. Phase `host`: time between steps. Residue: time of no
 * phase.
 */
#ifndef KVD_FORMATS_PHASES_H
#define KVD_FORMATS_PHASES_H

typedef enum {
    KVD_PHASE_EMBED,
    KVD_PHASE_NORM,
    KVD_PHASE_QKV,
    /* Bias, norms of Q and K, RoPE; empty if another phase's kernel computes them. */
    KVD_PHASE_ROPE,
    /* Rotation of Q and K to the kept dimensions, if in a kernel of its own. */
    KVD_PHASE_ROTATE,
    /* Decompositions, quantisation and choice of tokens. */
    KVD_PHASE_COMPRESS,
    /* Storing new keys and values in the cache. */
    KVD_PHASE_APPEND,
    /* Dividing the attention among thread blocks. */
    KVD_PHASE_SCHEDULE,
    KVD_PHASE_PREFILL,
    KVD_PHASE_DECODE,
    /* Decompression of values or reconstruction of keys, if in a kernel of its own. */
    KVD_PHASE_RESTORE,
    KVD_PHASE_O,    /* output projection */
    KVD_PHASE_MLP,  /* feed-forward block */
    KVD_PHASE_HEAD, /* final norm and logits */
    KVD_PHASE_SAMPLE,
    KVD_PHASE_COMM, /* communication between GPUs: sums and exchanges */
    KVD_PHASE_HOST, /* host work during which the GPU is idle */
    KVD_PHASES
} kvd_phase;
/* Returns the phase's name, e.g. "qkv"; the column of seconds is "qkv_s". */
const char *kvd_phase_column(kvd_phase p);

typedef struct {
    double part[KVD_PHASES];
    double total; /* seconds of the whole step, measured separately */
} kvd_phase_times;

/* Returns the seconds of the step that belong to no phase. */
double kvd_phase_residue(const kvd_phase_times *t);
void kvd_phase_add(kvd_phase_times *sum, const kvd_phase_times *t);

#endif
