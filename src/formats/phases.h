/* Times of the phases of an inference step. Time between steps is phase `host`. */
#ifndef KVD_FORMATS_PHASES_H
#define KVD_FORMATS_PHASES_H

typedef enum {
    KVD_PHASE_EMBED,
    KVD_PHASE_NORM,
    KVD_PHASE_QKV,
    KVD_PHASE_ROPE, /* bias, norms of Q and K, and RoPE */
    /* projection of Q and K to fewer dimensions, if no other kernel does it */
    KVD_PHASE_ROTATE,
    KVD_PHASE_COMPRESS,
    KVD_PHASE_APPEND, /* storing new keys and values in the cache */
    /* division of attention's work among thread blocks */
    KVD_PHASE_SCHEDULE,
    KVD_PHASE_PREFILL,
    KVD_PHASE_DECODE,
    /* decompression, if no other kernel does it */
    KVD_PHASE_RESTORE,
    KVD_PHASE_O,    /* output projection */
    KVD_PHASE_MLP,  /* feed-forward block */
    KVD_PHASE_HEAD, /* final norm and logits */
    KVD_PHASE_SAMPLE,
    KVD_PHASE_COMM, /* communication between GPUs: sums and exchanges */
    KVD_PHASE_HOST, /* host work during which the GPU is idle */
    KVD_PHASES
} kvd_phase;
/* Returns the name of a phase, such as "qkv". Column "qkv_s" of a table has its seconds. */
const char *kvd_phase_column(kvd_phase p);

typedef struct {
    double part[KVD_PHASES];
    double total; /* seconds of the whole step, measured separately */
} kvd_phase_times;

/* Returns the seconds of a step that belong to none of the phases. */
double kvd_phase_residue(const kvd_phase_times *t);
void kvd_phase_add(kvd_phase_times *sum, const kvd_phase_times *t);

#endif
