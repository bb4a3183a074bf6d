/* State file OUT.h5.state of kvdim-collect, from which --resume continues. It is written after the
 * data that it describes. */
#ifndef KVD_COLLECT_STATE_H
#define KVD_COLLECT_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/run_key.h"
#include "formats/attention.h"
#include "formats/moments.h"

typedef struct {
    char run_id[40];              /* random identifier of the run, also in the activations file */
    size_t n_sequences, n_tokens; /* number of sequences and tokens that are on disk */
    uint64_t dump_checksum; /* value of kvd_activations_checksum; 0 without an activations file */
    char key[sizeof(kvd_run_key)]; /* run key: text of all options that affect the results */
} kvd_state;

/* Fails if `path` exists and is not a state file (progress of a run, for --resume). */
int kvd_state_check(const char *path, kvd_err *err);

/* Atomically writes a run's progress *s for --resume, with the second moments `sums` and the
 * attention statistics `stats`, unless these are NULL. */
int kvd_state_save(const char *path, const kvd_state *s, const kvd_moments *sums,
                   const kvd_attention_stats *stats, kvd_err *err);

/* Reads a file of saved progress, and sets *found to 1 if it exists. Fills the second moments
 * `sums` and the attention statistics `stats` only if the file was written with the same options as
 * *now. */
int kvd_state_load(const char *path, kvd_state *s, const kvd_run_key *now, kvd_moments *sums,
                   kvd_attention_stats *stats, int *found, kvd_err *err);

#endif
