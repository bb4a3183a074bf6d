/*
 * Saves and loads OUT.h5.state, next to OUT.h5, from which an interrupted kvdim-collect is resumed.
 * It holds the number of finished sequences and tokens, everything that decides the numbers (the
 * run key), and the sums of moments and attention. It is replaced as a whole, and only after the
 * data that it describes is on disk.
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
    char run_id[40]; /* identifier of the run, also stored in its activations file */
    /* Numbers of sequences and tokens that are finished and on disk. */
    size_t n_sequences, n_tokens;
    /* Checksum of the recorded tokens (kvd_activations_checksum); 0 means no activations file. */
    uint64_t dump_checksum;
    char key[sizeof(kvd_run_key)]; /* text of the run key: all options that affect the numbers */
} kvd_state;

/*
 * Fails if `path`, or the temporary name under which a state file is written, exists and is not a
 * state file of an earlier run.
 */
int kvd_state_check(const char *path, kvd_err *err);

/*
 * Writes the state *s of a run to `path` atomically, together with the second moments `sums` and
 * the attention statistics `stats`. Each of `sums` and `stats` may be NULL.
 */
int kvd_state_save(const char *path, const kvd_state *s, const kvd_moments *sums,
                   const kvd_attention_stats *stats, kvd_err *err);

/*
 * Loads the state of an interrupted run from `path`; sets *found to 0 if the file does not exist.
 * `sums` and `stats`, if not NULL, are allocated by the caller. They are filled only if the state
 * was saved with the options in *now (the run key of this run), because otherwise their sizes may
 * differ. A file that does not match its checksum is an error. A state of other options is no
 * error; the caller must compare s->key with *now.
 */
int kvd_state_load(const char *path, kvd_state *s, const kvd_run_key *now, kvd_moments *sums,
                   kvd_attention_stats *stats, int *found, kvd_err *err);

#endif
