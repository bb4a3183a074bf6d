/*
 * What an interrupted kvdim-collect needs to go on: OUT.h5.state, beside OUT.h5. It holds how far
 * the run came, everything that decides the numbers (the run key), and the sums of moments and attention. It
 * is replaced as a whole, and only after the data it speaks of is on disk.
 */
#ifndef KVD_COLLECT_STATE_H
#define KVD_COLLECT_STATE_H

#include <stddef.h>

#include "common/err.h"
#include "common/run_key.h"
#include "formats/attention.h"
#include "formats/moments.h"

typedef struct {
    char run_id[40];               /* also in the dump that this state belongs to */
    size_t n_sequences, n_tokens;  /* done and on disk                            */
    char key[sizeof(kvd_run_key)]; /* text of the run key                         */
} kvd_state;

/* Writes the state, and when they are not NULL the sums over tokens in sums, and stats; atomic. */
int kvd_state_save(const char *path, const kvd_state *s, const kvd_moments *sums,
                   const kvd_attention_stats *stats, kvd_err *err);

/*
 * Loads it: *found is 0 when there is none. sums and stats, when not NULL, are allocated by the caller and are
 * filled only when the state's key equals `now`: their sizes are then the same too. A damaged file
 * is an error. A different key is none: the caller compares s->key.
 */
int kvd_state_load(const char *path, kvd_state *s, const kvd_run_key *now, kvd_moments *sums,
                   kvd_attention_stats *stats, int *found, kvd_err *err);

#endif
