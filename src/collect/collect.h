/* The parts of kvdim-collect: engine, output files, snapshots, report, and MPI ranks. */
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
 * Files that kvdim-collect writes: the result OUT.h5 and, while a run is unfinished, the state file
 * OUT.h5.state. A run that records squared gradients has no state file and cannot be resumed.
 *
 * Any other run may be killed at any moment. OUT.h5.state then describes only data that is on disk,
 * and an earlier OUT.h5 is unchanged. A resumed run gives the same datasets, bit for bit.
 */

typedef struct {
    const kvd_checkpoint *checkpoint; /* borrowed */
    size_t max_tokens, max_len;
    int first_layer, last_layer;
    bool pre; /* record Q and K before RoPE too */
    /* Activations file that receives Q, K and V; borrowed, may be NULL. */
    kvd_activations *dump;
    /* Second moments to which batches are added; owned by the caller, may be NULL. */
    kvd_moments *sums;
    /* Attention statistics to add to, on the CPU only; owned by the caller, may be NULL. */
    kvd_attention_stats *stats;
    /* Squared gradients to add to, on one GPU at most; owned by the caller, may be NULL. */
    kvd_fisher *fisher;
    int threads;
    kvd_dtype compute; /* number type of the passes on a GPU: KVD_F32 or KVD_BF16 */
    int first_gpu, n_gpus;
} kvd_collect_spec;

/*
 * Seconds spent so far in the engine's function `run`, by kind of work. Recording that runs in
 * parallel with the forward pass counts only while the forward pass waits for it. On several GPUs
 * `record` and `write` are the seconds of the first GPU.
 */
typedef struct {
    /*
     * `backward` includes the activations that the backward pass computes again. `forward` excludes
     * the time in `backward`, `record` and `write`.
     */
    double forward, backward, record, write;
} kvd_collect_times;

typedef struct kvd_collect_engine kvd_collect_engine;
struct kvd_collect_engine {
    /*
     * Writes W_O and W_V of the recorded layers to the activations file, and adds their second
     * moments to spec.sums.
     */
    int (*weights)(kvd_collect_engine *e, kvd_err *err);
    /*
     * Runs a batch whose first token has index first_token in the activations file.
     *
     *   into     second moments to which `run` adds: spec.sums or a snapshot's; NULL means none
     *   to_dump  if true, `run` adds the batch also to the file, spec.stats and spec.fisher
     *   give_up  called between layers; if it returns nonzero, `run` fails with its message in *err
     *
     * After a failure the sums, the statistics and the batch's rows of the file are invalid.
     */
    int (*run)(kvd_collect_engine *e, const kvd_batch *b, size_t first_token, kvd_moments *into,
               bool to_dump, int (*give_up)(void *ctx, kvd_err *err), void *ctx, kvd_err *err);
    /*
     * Waits until `run` has added all batches to the second moments and to the activations file.
     * The caller must call this before it reads or saves the second moments or the file. Afterwards
     * the caller may change the second moments of a snapshot, but must never change spec.sums.
     */
    int (*flush)(kvd_collect_engine *e, kvd_err *err);
    void (*free)(kvd_collect_engine *e);
    /* Description of the engine, valid until free. */
    const char *(*describe)(const kvd_collect_engine *e);
    kvd_collect_times times;
};

/* Return an engine that runs the checkpoint s->checkpoint. On failure return NULL and fill *err. */
kvd_collect_engine *kvd_collect_engine_cpu(const kvd_collect_spec *s, kvd_err *err);
kvd_collect_engine *kvd_collect_engine_cuda(const kvd_collect_spec *s, kvd_err *err);

/*
 * Sets *batch to the largest number of tokens of a batch that fits into the total (not the free)
 * memory of the GPU.
 */
int kvd_engine_cuda_batch(const kvd_config *c, kvd_dtype compute, int first_gpu, int n_gpus,
                          size_t seq_len, size_t *batch, kvd_err *err);

typedef struct {
    bool want_dump, want_moments, want_stats, want_fisher;
    /* Paths of the output files and of the state file; NULL for a file that is not written. */
    char *dump_path, *moments_path, *stats_path, *fisher_path, *state_path;
    kvd_activations dump;
    kvd_moments sums;
    kvd_attention_stats stats;
    kvd_fisher fisher;
    /* Files that are open from the start of the run, to hold the locks on their names. */
    kvd_h5 moments_file, stats_file;
    const kvd_run *run;
    kvd_run_key key;
    kvd_state state;
    bool saved;     /* a state file of this run is on disk */
    char note[512]; /* message about the output files for the user, or "" */
} kvd_outputs;

typedef enum { KVD_OPENED_NEW, KVD_OPENED_RESUMED, KVD_OPENED_DONE } kvd_opened;

/*
 * Opens the output files. The caller must have zeroed *o and set run, key and want_*. The caller
 * must also have set the dtype in o->dump, n_kept in o->stats, n_rows in o->fisher and, in o->sums,
 * model, label, corpus_hash, n_tokens, n_sequences, seq_len, layers and has_pre.
 *
 *   output        the path of -o
 *   ..._file      path for one kind of result; NULL means that it is stored in `output`
 *   how           NEW: nothing is done yet. RESUMED: o->state says how much is done, and o->sums
 *                 and o->stats hold the sums so far. DONE: complete files of a run with an equal
 *                 o->key exist, and no file is open.
 *
 * If `resume` is true and the existing files were made with another key, fails and names the first
 * option that differs. If `resume` is false, the files of an interrupted run are replaced.
 */
int kvd_outputs_open(kvd_outputs *o, const char *output, const char *moments_file,
                     const char *stats_file, const char *fisher_file, bool resume, kvd_opened *how,
                     kvd_err *err);

/*
 * Returns the bytes that kvd_outputs_open will allocate for second moments, attention statistics
 * and squared gradients. The caller must have filled the fields of *o as for kvd_outputs_open.
 */
double kvd_outputs_bytes(kvd_outputs *o);

/*
 * Returns 1 if the file `path` is the complete output of a run with the options *key, else 0. If
 * the file is the complete output of a run with other options, sets *other to true and writes the
 * difference to *err.
 */
int kvd_outputs_complete(const char *path, const kvd_schema *schema, const kvd_run_key *key,
                         bool *other, kvd_err *err);

/*
 * Writes all data recorded so far to disk, and then the state file. n_sequences and n_tokens count
 * the data recorded so far.
 */
int kvd_outputs_save(kvd_outputs *o, size_t n_sequences, size_t n_tokens, kvd_err *err);

/* Returns true if --resume can continue from the state that the last kvd_outputs_save wrote. */
bool kvd_outputs_kept(const kvd_outputs *o);

int kvd_outputs_finish(kvd_outputs *o, kvd_err *err);

/*
 * Closes all output files. Keeps an unfinished activations file if a state file was saved. Safe on
 * a zeroed *o.
 */
void kvd_outputs_close(kvd_outputs *o);

/*
 * Fails if the host memory cannot hold the weights of a layer, the activations of a batch and the
 * sums in *out. If the model runs on a GPU, only the sums need host memory. The caller must have
 * completed the options *cfg and filled *out as for kvd_outputs_open.
 */
int kvd_collect_check_memory(const kvd_collect_options *cfg, const kvd_checkpoint *c,
                             kvd_outputs *out, size_t batch_tokens, kvd_err *err);

/*
 * Snapshots: files with the second moments of only the first tokens of a run. NAME.1024.h5 holds
 * the fewest whole sequences that have 1024 tokens together. It equals bit for bit the file of a
 * run that is limited to these sequences by --tokens.
 */

typedef struct {
    size_t asked; /* wanted number of tokens, part of the file name */
    /* Numbers of whole sequences and of their tokens; n_tokens >= asked. */
    size_t n_sequences, n_tokens;
    char corpus_hash[40];
    char *path;
    /*
     * Provenance of a run that ends at this snapshot, filled by the caller. Only run.parameters is
     * owned.
     */
    kvd_run run;
    /* Options of a run that ends at this snapshot, filled by the caller. */
    kvd_run_key key;
    /* True if the snapshot's file is complete and was made with the options in `key`. */
    bool there;
} kvd_snapshot;

typedef struct {
    kvd_snapshot *at; /* snapshots by increasing number of tokens, [n] */
    size_t n;
} kvd_snapshots;

/*
 * Computes names, token counts and hashes of snapshots. asked [n] is increasing; moments_path is
 * the file for all tokens. Fails if the corpus has too few tokens. The caller must fill `run` and
 * `key` of each snapshot, and check that no other output file has the name of a snapshot file.
 */
int kvd_snapshots_init(kvd_snapshots *s, const size_t *asked, size_t n, const char *moments_path,
                       kvd_corpus *corpus, kvd_err *err);
void kvd_snapshots_release(kvd_snapshots *s);

/*
 * Finds the snapshot files of a run that is resumed after n_sequences sequences. Fails if the file
 * of an earlier snapshot is missing or was made with other options.
 */
int kvd_snapshots_resume(kvd_snapshots *s, size_t n_sequences, kvd_err *err);

/*
 * Searches for an unwritten snapshot whose number of sequences is in first + 1 .. last. Returns the
 * index of the first one at or after index `from`, or s->n if there is none.
 */
size_t kvd_snapshots_next(const kvd_snapshots *s, size_t from, size_t first, size_t last);

/*
 * Writes the file of a snapshot. `sums` must hold the second moments of exactly the snapshot's
 * sequences. Its other fields (model, label, ...) must be those of the whole run; the snapshot
 * replaces its counts and hash.
 */
int kvd_snapshot_write(kvd_snapshot *s, const kvd_moments *sums, kvd_err *err);

/*
 * Numbers for the report at the end of a run. A resumed run counts only its own work. With several
 * ranks, the numbers are those of this process.
 */
typedef struct {
    const kvd_collect_options *cfg;
    const kvd_corpus *corpus;
    const kvd_outputs *out;
    const kvd_snapshots *snapshots;
    kvd_collect_times times;
    /* seconds for saving states, writing snapshots and completing the output files */
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
 * Lets several processes (MPI ranks) collect moments together. Each takes a part of the sequences,
 * and rank 0 writes the files. Without an MPI launcher there is one rank, and the functions do
 * nothing and succeed. A build without MPI fails if a launcher starts several ranks. "Collective"
 * functions must be called by every rank, in the same order.
 */

typedef struct {
    int rank, n;  /* 0 and 1 without an MPI launcher */
    bool started; /* MPI runs, so kvd_ranks_end must be called */
    bool lost;    /* MPI failed, so this rank cannot tell the others about errors */
} kvd_ranks;

/*
 * Redirects stdout and stderr of all ranks but one to nowhere until kvd_ranks_start. Wrong usage
 * and --help would otherwise be printed once per rank. Must be called before the options are
 * parsed.
 */
void kvd_ranks_mute(void);

/* Returns the index of this process on its machine; 0 if the launcher does not state it. */
int kvd_ranks_local(void);

/* Starts MPI if a launcher started this process. Collective: every rank must call it. */
int kvd_ranks_start(kvd_ranks *r, kvd_err *err);

/*
 * Returns 0 if status is 0 on every rank. Otherwise returns -1, and *err holds the message of the
 * lowest rank that failed. Collective: a rank that has failed calls it too.
 */
int kvd_ranks_agree(kvd_ranks *r, int status, kvd_err *err);

/*
 * Fails unless every rank passes the same `text`. Messages call the text `what`. Collective: every
 * rank must call it.
 */
int kvd_ranks_same(kvd_ranks *r, const char *what, const char *text, kvd_err *err);

/*
 * Computes the range of sequences, *first .. *end - 1, that this rank processes; it may be empty.
 * The range begins and ends where a run of one process begins a batch, because the rounding of
 * float32 products depends on the batch.
 */
void kvd_ranks_share(const kvd_ranks *r, const kvd_corpus *corpus, size_t max_tokens, size_t *first,
                     size_t *end);

/* Replaces *value by the largest *value of all ranks. Collective: every rank must call it. */
int kvd_ranks_max(kvd_ranks *r, size_t *value, kvd_err *err);

/*
 * Adds the second moments of Q, K and V of all ranks into *sums of rank 0. On other ranks *sums is
 * invalid afterwards. Moments of weights do not change. Collective: every rank must call it.
 */
int kvd_ranks_sum(kvd_ranks *r, kvd_moments *sums, kvd_err *err);

/*
 * Ends MPI. Collective: every rank must call it. If an MPI call failed earlier in this process,
 * ends all ranks at once and does not return.
 */
int kvd_ranks_end(kvd_ranks *r, kvd_err *err);

#endif
