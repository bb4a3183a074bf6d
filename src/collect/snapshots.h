/*
 * Moments after the first tokens of a run, each in a file of its own: NAME.1024.h5 beside the moments NAME.h5
 * holds what a run of --tokens gives that stops at the first end of a sequence at or after 1024 tokens, bit for
 * bit, and the same run_key.
 *
 * A snapshot is complete before the run saves a state that lies beyond it, so a run that goes on never needs
 * what came before.
 */
#ifndef KVD_COLLECT_SNAPSHOTS_H
#define KVD_COLLECT_SNAPSHOTS_H

#include <stdbool.h>
#include <stddef.h>

#include "collect/state.h"
#include "formats/moments.h"
#include "model/corpus.h"

typedef struct {
    size_t asked;                 /* tokens asked for: they are in the name         */
    size_t n_sequences, n_tokens; /* what it holds: whole sequences, n_tokens >= asked */
    char corpus_hash[40];         /* of these                                       */
    char *path;
    kvd_run run;     /* the run as of n_tokens; all but the parameters is borrowed    */
    kvd_run_key key; /* filled by the caller, like run                                */
    bool there;      /* complete on disk, with this key                               */
} kvd_snapshot;

typedef struct {
    kvd_snapshot *at; /* [n], rising */
    size_t n;
} kvd_snapshots;

/*
 * Settles counts, names and hashes of asked[n] (rising). moments_path is the file of all tokens, dump_path the
 * dump or NULL: no snapshot may have its name. Fails when the corpus has fewer tokens than asked for. The
 * caller fills run and key of each.
 */
int kvd_snapshots_init(kvd_snapshots *s, const size_t *asked, size_t n, const char *moments_path,
                       const char *dump_path, kvd_corpus *corpus, kvd_err *err);
void kvd_snapshots_release(kvd_snapshots *s);

/*
 * For a run that goes on after n_sequences: finds out which are there. Fails, naming the file, when one that the
 * run is past is missing or of other options: sums cannot be taken back.
 */
int kvd_snapshots_resume(kvd_snapshots *s, size_t n_sequences, kvd_err *err);

/* The first snapshot from s->at[from] on that is still to be made and ends in sequences first+1 .. last; s->n
 * when there is none. */
size_t kvd_snapshots_next(const kvd_snapshots *s, size_t from, size_t first, size_t last);

/* Writes it: sums hold exactly its sequences, the description is that of the whole run. */
int kvd_snapshot_write(kvd_snapshot *s, const kvd_moments *sums, kvd_err *err);

#endif
