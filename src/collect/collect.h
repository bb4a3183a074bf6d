/* Parts of kvdim-collect: engine, output files, snapshots, report, and MPI ranks. */
#ifndef KVD_COLLECT_COLLECT_H
#define KVD_COLLECT_COLLECT_H

#include <stdbool.h>
#include <stddef.h>

#include "collect/options.h"
#include "collect/state.h"
#include "common/err.h"
#include "formats/activations.h"
#include "formats/attention.h"
#include "formats/fisher.h"
#include "formats/moments.h"
#include "model/checkpoint/checkpoint.h"
#include "model/pass/forward.h"
#include "model/text/corpus.h"

/*
 * Files of kvdim-collect: OUT.h5 and, while unfinished, the state file OUT.h5.state (not with
 * squared gradients, which cannot be resumed).
 *
 * A killed run leaves a state file that describes only data on disk, and an earlier OUT.h5
 * unchanged. A resumed run gives the same bits.
 */

typedef struct {
    const kvd_checkpoint *checkpoint; /* borrowed */
    size_t max_tokens, max_len;
    int first_layer, last_layer;
    bool pre; /* record Q and K before RoPE too */
    /* activations file for Q, K and V; borrowed, may be NULL */
    kvd_activations *dump;
    /* second moments to add to; the caller's, may be NULL */
    kvd_moments *sums;
    /* attention statistics to add to, on the CPU only; the caller's, may be NULL */
    kvd_attention_stats *stats;
    /* squared gradients to add to, on one GPU at most; the caller's, may be NULL */
    kvd_fisher *fisher;
    int threads;
    kvd_dtype compute; /* number type of the passes on a GPU: KVD_F32 or KVD_BF16 */
    int first_gpu, n_gpus;
} kvd_collect_spec;

/*
 * Seconds in the engine's `run` by kind of work; recording counts only while the forward pass
 * waits. Several GPUs: `record` and `write` of the first.
 */
typedef struct {
    /* `backward` includes its recomputed activations; `forward` excludes the other three */
    double forward, backward, record, write;
} kvd_collect_times;

typedef struct kvd_collect_engine kvd_collect_engine;
struct kvd_collect_engine {
    /*
     * Writes W_O and W_V of recorded layers to the activations file and adds their second moments
     * to spec.sums.
     */
    int (*weights)(kvd_collect_engine *e, kvd_err *err);
    /*
     * Runs a batch whose first token has index first_token in the activations file.
     *
     * - into: second moments to add to, spec.sums or a snapshot's; NULL: none
     * - to_dump: adds the batch also to the file, spec.stats and spec.fisher
     * - give_up: called between layers; if nonzero, `run` fails with its message in *err
     *
     * After a failure the sums, statistics and the batch's rows of the file are invalid.
     */
    int (*run)(kvd_collect_engine *e, const kvd_batch *b, size_t first_token, kvd_moments *into,
               bool to_dump, int (*give_up)(void *ctx, kvd_err *err), void *ctx, kvd_err *err);
    /*
     * Waits until all batches are in the second moments and the activations file. Call before
     * reading either. The caller may then change a snapshot's moments, but never spec.sums.
     */
    int (*flush)(kvd_collect_engine *e, kvd_err *err);
    void (*free)(kvd_collect_engine *e);
    /* Returns a description that is valid until `free`. */
    const char *(*describe)(const kvd_collect_engine *e);
    kvd_collect_times times;
};

/* Return an engine for s->checkpoint. On failure return NULL and fill *err. */
kvd_collect_engine *kvd_collect_engine_cpu(const kvd_collect_spec *s, kvd_err *err);
kvd_collect_engine *kvd_collect_engine_cuda(const kvd_collect_spec *s, kvd_err *err);

/* Sets *batch to the most tokens of a batch that fit into the GPU's total (not free) memory. */
int kvd_engine_cuda_batch(const kvd_config *c, kvd_dtype compute, int first_gpu, int n_gpus,
                          size_t seq_len, size_t *batch, kvd_err *err);

typedef struct {
    bool want_dump, want_moments, want_stats, want_fisher;
    /* Output files and state file; NULL for a file that is not written. */
    char *dump_path, *moments_path, *stats_path, *fisher_path, *state_path;
    kvd_activations dump;
    kvd_moments sums;
    kvd_attention_stats stats;
    kvd_fisher fisher;
    /* open from the start of the run: they hold the locks on their names */
    kvd_h5 moments_file, stats_file;
    const kvd_run *run;
    kvd_run_key key;
    kvd_state state;
    bool saved;     /* a state file of this run is on disk */
    char note[512]; /* message about the output files for the user, or "" */
} kvd_outputs;

typedef enum { KVD_OPENED_NEW, KVD_OPENED_RESUMED, KVD_OPENED_DONE } kvd_opened;

/*
 * Opens the output files. The caller zeroed *o and set run, key, want_*, dtype in o->dump, n_kept
 * in o->stats, n_rows in o->fisher and model, label, corpus_hash, n_tokens, n_sequences, seq_len,
 * layers, has_pre in o->sums.
 *
 * - output: path of -o; ..._file: path of one kind of result, NULL: `output`
 * - *how NEW: nothing is done; RESUMED: o->state, o->sums and o->stats hold what is done; DONE:
 *   complete files with an equal o->key exist, none is open
 *
 * resume: fails on another key, naming the first different option. Without: replaces files of an
 * interrupted run.
 */
int kvd_outputs_open(kvd_outputs *o, const char *output, const char *moments_file,
                     const char *stats_file, const char *fisher_file, bool resume, kvd_opened *how,
                     kvd_err *err);

/* Returns the bytes that kvd_outputs_open will allocate, for *o filled as for kvd_outputs_open. */
double kvd_outputs_bytes(kvd_outputs *o);

/*
 * Returns 1 if `path` is a complete output with the options *key, else 0; with other options *other
 * is true and *err the difference.
 */
int kvd_outputs_complete(const char *path, const kvd_schema *schema, const kvd_run_key *key,
                         bool *other, kvd_err *err);

/* Writes all data so far, n_sequences and n_tokens, to disk, then the state file. */
int kvd_outputs_save(kvd_outputs *o, size_t n_sequences, size_t n_tokens, kvd_err *err);

/* Returns true if --resume can continue from the last kvd_outputs_save. */
bool kvd_outputs_kept(const kvd_outputs *o);

int kvd_outputs_finish(kvd_outputs *o, kvd_err *err);

/* Closes all files; keeps an unfinished activations file with a state file. Safe on a zeroed *o. */
void kvd_outputs_close(kvd_outputs *o);

/*
 * Fails if host memory cannot hold a layer's weights, a batch's activations and the sums of *out
 * (on a GPU: only sums). *cfg is complete, *out filled as for kvd_outputs_open.
 */
int kvd_collect_check_memory(const kvd_collect_options *cfg, const kvd_checkpoint *c,
                             kvd_outputs *out, size_t batch_tokens, kvd_err *err);

/*
 * Snapshots: NAME.1024.h5 has second moments of the fewest whole sequences with 1024 tokens, bit
 * for bit as a run with that --tokens.
 */

typedef struct {
    size_t asked; /* wanted number of tokens, part of the file name */
    /* whole sequences and their tokens; n_tokens >= asked */
    size_t n_sequences, n_tokens;
    char corpus_hash[40];
    char *path;
    /* provenance of a run that ends here, set by the caller; owns only run.parameters */
    kvd_run run;
    /* options of a run that ends here, set by the caller */
    kvd_run_key key;
    /* true if the snapshot's file is complete and has the options `key` */
    bool there;
} kvd_snapshot;

typedef struct {
    kvd_snapshot *at; /* [n] by increasing number of tokens */
    size_t n;
} kvd_snapshots;

/*
 * Computes names, token counts and hashes for increasing asked [n]; moments_path: file of all
 * tokens. Fails if the corpus is too short. The caller fills `run` and `key`, and checks that names
 * differ from other outputs.
 */
int kvd_snapshots_init(kvd_snapshots *s, const size_t *asked, size_t n, const char *moments_path,
                       kvd_corpus *corpus, kvd_err *err);
void kvd_snapshots_release(kvd_snapshots *s);

/*
 * Finds the snapshots of a run resumed after n_sequences sequences. Fails if one is missing or has
 * other options.
 */
int kvd_snapshots_resume(kvd_snapshots *s, size_t n_sequences, kvd_err *err);

/*
 * Returns the first unwritten snapshot from index `from` on that ends in sequences first + 1 ..
 * last, or s->n.
 */
size_t kvd_snapshots_next(const kvd_snapshots *s, size_t from, size_t first, size_t last);

/*
 * Writes a snapshot. `sums`: second moments of its sequences, other fields of the whole run; counts
 * and hash are replaced.
 */
int kvd_snapshot_write(kvd_snapshot *s, const kvd_moments *sums, kvd_err *err);

/* Numbers for the report at the end, of this process and, if resumed, its own work. */
typedef struct {
    const kvd_collect_options *cfg;
    const kvd_corpus *corpus;
    const kvd_outputs *out;
    const kvd_snapshots *snapshots;
    kvd_collect_times times;
    /* seconds for states, snapshots and completing output files */
    double save_s;
    double start_s; /* seconds before the first batch */
    double loop_s;  /* seconds of the loop over batches */
    double total_s; /* seconds since the start of the program */
    size_t resumed_tokens;
    bool nothing_to_do;
    const char *device; /* "cpu" or "cuda" */
    const char *engine; /* name of the attention engine; NULL if no batch ran */
} kvd_collect_summary;

int kvd_collect_summarise(const char *program, const kvd_collect_summary *s, kvd_err *err);

/*
 * Several processes (MPI ranks) collect moments together; rank 0 writes the files. Without a
 * launcher there is one rank, and all functions succeed. A build without MPI fails on several
 * ranks. "Collective": every rank calls it, in the same order.
 */

typedef struct {
    int rank, n;  /* 0 and 1 without an MPI launcher */
    bool started; /* MPI runs, so kvd_ranks_end must be called */
    bool lost;    /* MPI failed: other ranks cannot be told about errors */
} kvd_ranks;

/*
 * Mutes stdout and stderr of all ranks but one until kvd_ranks_start. Call before the options are
 * parsed.
 */
void kvd_ranks_mute(void);

/* Returns the index of this process on its machine; 0 if unknown. */
int kvd_ranks_local(void);

/* Starts MPI if a launcher started this process. Collective. */
int kvd_ranks_start(kvd_ranks *r, kvd_err *err);

/*
 * Returns 0 if status is 0 on every rank, else -1 with the message of the lowest failed rank.
 * Collective, also for failed ranks.
 */
int kvd_ranks_agree(kvd_ranks *r, int status, kvd_err *err);

/* Fails unless every rank passes the same `text`, called `what` in messages. Collective. */
int kvd_ranks_same(kvd_ranks *r, const char *what, const char *text, kvd_err *err);

/*
 * Computes this rank's sequences *first .. *end - 1, maybe none, at batch limits of a run of one
 * process: float32 rounding depends on the batch.
 */
void kvd_ranks_share(const kvd_ranks *r, const kvd_corpus *corpus, size_t max_tokens, size_t *first,
                     size_t *end);

/* Replaces *value by the largest of all ranks. Collective. */
int kvd_ranks_max(kvd_ranks *r, size_t *value, kvd_err *err);

/*
 * Adds second moments of Q, K and V of all ranks into *sums of rank 0; on other ranks they are
 * invalid afterwards. Moments of weights do not change. Collective.
 */
int kvd_ranks_sum(kvd_ranks *r, kvd_moments *sums, kvd_err *err);

/*
 * Ends MPI. Collective. After a failed MPI call of this process, ends all ranks and does not
 * return.
 */
int kvd_ranks_end(kvd_ranks *r, kvd_err *err);

#endif
