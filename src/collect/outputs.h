/*
 * Opens, saves and finishes the files of kvdim-collect as one unit: the dump, the moments, the
 * attention statistics and the squared gradients, of which one is OUT.h5 and the others have files
 * of their own, and the state OUT.h5.state.
 *
 * A run may be killed at any moment. Three things then hold. If OUT.h5.state exists, it describes
 * data that is on disk and nothing later. An earlier complete OUT.h5 is unchanged. A run resumed
 * from the state gives the same datasets, bit for bit, as a run without interruption. A run with
 * squared gradients saves no state.
 */
#ifndef KVD_COLLECT_OUTPUTS_H
#define KVD_COLLECT_OUTPUTS_H

#include <stdbool.h>
#include <stddef.h>

#include "collect/engine.h"
#include "collect/options.h"
#include "collect/state.h"
#include "formats/activations.h"
#include "formats/fisher.h"
#include "formats/moments.h"
#include "model/checkpoint/checkpoint.h"
#include "model/text/corpus.h"

typedef struct {
    bool want_dump, want_moments, want_stats, want_fisher;
    /* NULL if not wanted */
    char *dump_path, *moments_path, *stats_path, *fisher_path, *state_path;
    kvd_activations dump;
    kvd_moments sums;
    kvd_attention_stats stats;
    kvd_fisher fisher;
    kvd_h5 moments_file, stats_file; /* open from the start, to hold the locks */
    const kvd_run *run;
    kvd_run_key key;
    kvd_state state;
    bool saved;     /* true if a state of this run is on disk */
    char note[512]; /* message for the user after opening, or "" */
} kvd_outputs;

typedef enum { KVD_OPENED_NEW, KVD_OPENED_RESUMED, KVD_OPENED_DONE } kvd_opened;

/*
 * Opens the files of a run. The caller must have zeroed *o and set run, key, want_*, in o->sums the
 * description (model, label, corpus_hash, n_tokens, n_sequences, seq_len, layers, has_pre), in
 * o->dump the dtype, in o->stats n_kept and in o->fisher n_rows.
 *
 *   output        the path of -o
 *   moments_file  file of the moments; NULL: `output`
 *   stats_file    file of the attention statistics; NULL: `output`
 *   fisher_file   file of the squared gradients; NULL: `output`
 *   how           result. NEW: nothing is done yet. RESUMED: o->state says how much is done, and
 *                 o->sums and o->stats hold the sums so far. DONE: complete files with this key
 *                 exist, and no file is open.
 *
 * If `resume` and the state or a complete file was made with another key, fails and names the first
 * option that differs. Without `resume`, the files of an interrupted run are replaced.
 */
int kvd_outputs_open(kvd_outputs *o, const char *output, const char *moments_file,
                     const char *stats_file, const char *fisher_file, bool resume, kvd_opened *how,
                     kvd_err *err);

/*
 * Returns the bytes of the sums that kvd_outputs_open will allocate. The caller must have described
 * the sums.
 */
double kvd_outputs_bytes(kvd_outputs *o);

/*
 * Returns 1 if `path` is a complete file of this key, else 0. If it is a complete file of another
 * key, also sets *other to true, and *err states the difference.
 */
int kvd_outputs_complete(const char *path, const kvd_schema *schema, const kvd_run_key *key,
                         bool *other, kvd_err *err);

/* Writes everything recorded so far to disk, and then the state that describes it. */
int kvd_outputs_save(kvd_outputs *o, size_t n_sequences, size_t n_tokens, kvd_err *err);

/*
 * Returns true if the files of the last kvd_outputs_save still exist, so that --resume can continue
 * from them.
 */
bool kvd_outputs_kept(const kvd_outputs *o);

/* Completes all files. */
int kvd_outputs_finish(kvd_outputs *o, kvd_err *err);

/*
 * Closes all open files. Keeps an unfinished dump if a state was saved. May be called on a zeroed
 * *o.
 */
void kvd_outputs_close(kvd_outputs *o);

/* Checks the host memory that a run of kvdim-collect needs, before the run allocates it. */

/*
 * Fails if the available memory cannot hold the weights of a layer, the activations of a batch of
 * batch_tokens and the sums of `out`. The message has the numbers and the options that lower them.
 * The caller must have resolved the options and described the sums. On a GPU only the sums are in
 * host memory.
 */
int kvd_collect_check_memory(const kvd_collect_options *cfg, const kvd_checkpoint *c,
                             kvd_outputs *out, size_t batch_tokens, kvd_err *err);

/*
 * Moments after the first tokens of a run, each in a file of its own. NAME.1024.h5, next to the
 * moments NAME.h5, holds the moments at the first end of a sequence at or after 1024 tokens. It
 * equals bit for bit, and in its run_key, the file of a run whose --tokens ends there.
 *
 * A snapshot is complete before the run saves a state with later tokens, so a resumed run never
 * needs earlier sums.
 */

typedef struct {
    size_t asked;                 /* requested number of tokens; part of the file's name */
    size_t n_sequences, n_tokens; /* contents: whole sequences, n_tokens >= asked */
    char corpus_hash[40];         /* hash of these sequences */
    char *path;
    kvd_run run;     /* the run up to n_tokens; all fields but the parameters are borrowed */
    kvd_run_key key; /* run key, filled by the caller, as is `run` */
    bool there;      /* true if the file is complete on disk, with this key */
} kvd_snapshot;

typedef struct {
    kvd_snapshot *at; /* [n], by increasing number of tokens */
    size_t n;
} kvd_snapshots;

/*
 * Computes counts, names and hashes of the snapshots asked[n], which increase. moments_path is the
 * file of all tokens. Fails if the corpus has fewer tokens than a snapshot. The caller must fill
 * `run` and `key` of each snapshot, and check that no other output of the run has its name.
 */
int kvd_snapshots_init(kvd_snapshots *s, const size_t *asked, size_t n, const char *moments_path,
                       kvd_corpus *corpus, kvd_err *err);
void kvd_snapshots_release(kvd_snapshots *s);

/*
 * Finds the snapshots that exist, for a run that is resumed after n_sequences. Fails, naming the
 * file, if a snapshot of an earlier sequence is missing or was made with other options, because
 * sums cannot be undone.
 */
int kvd_snapshots_resume(kvd_snapshots *s, size_t n_sequences, kvd_err *err);

/*
 * Returns the index of the first snapshot, from s->at[from] on, that is not yet made and ends in
 * sequences first+1 .. last. Returns s->n if there is none.
 */
size_t kvd_snapshots_next(const kvd_snapshots *s, size_t from, size_t first, size_t last);

/*
 * Writes the snapshot. `sums` must hold exactly its sequences, and the description of the whole
 * run.
 */
int kvd_snapshot_write(kvd_snapshot *s, const kvd_moments *sums, kvd_err *err);

/* Prints the final report of kvdim-collect on stdout, as lines of text or as one JSON object. */

/* Numbers of this process; a resumed run counts only its own work. */
typedef struct {
    const kvd_collect_options *cfg;
    const kvd_corpus *corpus;
    const kvd_outputs *out;
    const kvd_snapshots *snapshots;
    kvd_collect_times times;
    double save_s;  /* saving, snapshots and completing the files */
    double start_s; /* time before the first batch */
    double loop_s;  /* duration of the loop over batches */
    double total_s; /* time since the start of the program */
    size_t resumed_tokens;
    bool nothing_to_do;
    const char *device; /* "cpu", "cuda" */
    const char *engine; /* description of the engine; NULL if nothing ran */
} kvd_collect_summary;

int kvd_collect_summarise(const char *program, const kvd_collect_summary *s, kvd_err *err);

#endif
