/*
 * The files that kvdim-collect writes, as one thing that is opened, made safe now and then, and
 * finished: the dump, the moments, the attention statistics and the squared gradients, of which one is OUT.h5 and the others have files of
 * their own, and OUT.h5.state.
 *
 * At any moment a run may be killed. What then holds: OUT.h5.state, where it is there, speaks of
 * data that is on disk and of nothing later; an earlier complete OUT.h5 is untouched; and going on
 * from the state gives the datasets that an undisturbed run gives, bit for bit. A run with squared gradients saves no state.
 */
#ifndef KVD_COLLECT_OUTPUTS_H
#define KVD_COLLECT_OUTPUTS_H

#include <stdbool.h>

#include "collect/state.h"
#include "formats/activations.h"
#include "formats/fisher.h"
#include "formats/moments.h"

typedef struct {
    bool want_dump, want_moments, want_stats, want_fisher;
    char *dump_path, *moments_path, *stats_path, *fisher_path, *state_path; /* NULL when not wanted */
    kvd_activations dump;
    kvd_moments sums;
    kvd_attention_stats stats;
    kvd_fisher fisher;
    kvd_h5 moments_file, stats_file; /* open from the start: they hold the locks */
    const kvd_run *run;
    kvd_run_key key;
    kvd_state state;
    bool saved;     /* a state of this run is on disk */
    char note[512]; /* what the user should be told after opening; "" for nothing */
} kvd_outputs;

typedef enum { KVD_OPENED_NEW, KVD_OPENED_RESUMED, KVD_OPENED_DONE } kvd_opened;

/*
 * The caller has zeroed *o and set run, key, want_*, in o->sums the description (model, label,
 * corpus_hash, n_tokens, n_sequences, seq_len, layers, has_pre), in o->dump the dtype, in o->stats n_kept and in o->fisher n_rows.
 *
 *   output        -o
 *   moments_file  the file of the moments; NULL: it is `output`
 *   stats_file    the file of the attention statistics; NULL: it is `output`
 *   fisher_file   the file of the squared gradients; NULL: it is `output`
 *   how           out  NEW: nothing done yet. RESUMED: o->state says what is done; o->sums and
 *                      o->stats hold it. DONE: complete files with this key are there, nothing is open.
 *
 * With resume it fails when the state or a complete file was made with another key, naming the
 * first option that differs. Without it what an interrupted run left is replaced.
 */
int kvd_outputs_open(kvd_outputs *o, const char *output, const char *moments_file, const char *stats_file,
                     const char *fisher_file, bool resume, kvd_opened *how, kvd_err *err);

/* 1 when `path` is a complete file of this key, 0 when there is none; *other becomes true for one made with another
 * key, and *err then holds in what it differs. */
int kvd_outputs_complete(const char *path, const kvd_schema *schema, const kvd_run_key *key, bool *other,
                         kvd_err *err);

/* Everything recorded so far to disk, then the state that says so. */
int kvd_outputs_save(kvd_outputs *o, size_t n_sequences, size_t n_tokens, kvd_err *err);

/* Completes the files. */
int kvd_outputs_finish(kvd_outputs *o, kvd_err *err);

/* Closes whatever is open; an unfinished dump is kept if a state was saved. Safe when zeroed. */
void kvd_outputs_close(kvd_outputs *o);

#endif
