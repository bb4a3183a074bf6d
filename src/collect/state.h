/*
 * The state file OUT.h5.state, from which an interrupted kvdim-collect is resumed. It is replaced
 * as a whole, and only after the data that it describes is on disk.
 */
#ifndef KVD_COLLECT_STATE_H
#define KVD_COLLECT_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/run_key.h"
#include "formats/attention.h"
#include "formats/moments.h"

typedef struct {
    char run_id[40]; /* random identifier of the run, also in the activations file */
    /* Numbers of sequences and tokens that are on disk. */
    size_t n_sequences, n_tokens;
    /* Result of kvd_activations_checksum; 0 if there is no activations file. */
    uint64_t dump_checksum;
    char key[sizeof(kvd_run_key)]; /* run key: text with all options that affect the results */
} kvd_state;

/*
 * Fails if the file `path`, or its temporary file, which kvd_state_save renames, exists and is not
 * a state file.
 */
int kvd_state_check(const char *path, kvd_err *err);

/* Writes the state file atomically. `sums` and `stats` may be NULL. */
int kvd_state_save(const char *path, const kvd_state *s, const kvd_moments *sums,
                   const kvd_attention_stats *stats, kvd_err *err);

/*
 * Loads a state file. If there is none, sets *found to 0. If the state was saved with the options
 * *now, also fills `sums` and `stats`; otherwise leaves `sums` and `stats` unchanged. The caller
 * must allocate `sums` and `stats`; each may be NULL. The caller must compare s->key with *now. A
 * wrong checksum is an error.
 */
int kvd_state_load(const char *path, kvd_state *s, const kvd_run_key *now, kvd_moments *sums,
                   kvd_attention_stats *stats, int *found, kvd_err *err);

#endif
