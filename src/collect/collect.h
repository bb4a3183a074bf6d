/* Parts of kvdim-collect: running the model, output files, snapshots (files of second moments of a
 * run's first sequences), printed summary and MPI ranks. */
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

/* Settings and output objects of a run of the model that records Q, K and V. An interrupted and
 * resumed run gives bit-identical results. */
typedef struct {
    const kvd_checkpoint *checkpoint; /* owned by the caller */
    size_t max_tokens, max_len;
    int first_layer, last_layer;
    bool pre;              /* true if Q and K before RoPE are recorded too */
    kvd_activations *dump; /* activations file for Q, K and V; owned by the caller, may be NULL */
    kvd_moments *sums;     /* second moments to add to; owned by the caller, may be NULL */
    /* attention statistics to add to, or NULL; owned by the caller; not supported on GPUs */
    kvd_attention_stats *stats;
    /* squared gradients to add to, or NULL; owned by the caller; not supported on several GPUs */
    kvd_fisher *fisher;
    int threads;
    kvd_dtype compute; /* number type of the passes on a GPU: KVD_F32 or KVD_BF16 */
    int first_gpu, n_gpus;
} kvd_collect_spec;

/* Seconds that an engine has spent on running batches. Work that overlaps the forward pass is not
 * counted. */
typedef struct {
    /* seconds of forward and backward passes, of converting and summing Q, K and V (record), and of
     * writing files */
    double forward, backward, record, write;
} kvd_collect_times;

typedef struct kvd_collect_engine kvd_collect_engine;
struct kvd_collect_engine {
    /* Stores W_O and W_V of the recorded layers in the activations file, and their second moments
     * in spec.sums. A resumed run must call this function again. */
    int (*weights)(kvd_collect_engine *e, kvd_err *err);
    /* Runs the model on a batch. first_token: index in the activations file of the batch's first
     * token.
     *
     * - into: second moments to which the batch is added, or NULL
     * - to_dump: true to write Q, K and V to the file, and to add to spec.stats and spec.fisher
     * - give_up: called between layers; if it does not return 0, `run` fails
     *
     * After a failure all results are invalid. */
    int (*run)(kvd_collect_engine *e, const kvd_batch *b, size_t first_token, kvd_moments *into,
               bool to_dump, int (*give_up)(void *ctx, kvd_err *err), void *ctx, kvd_err *err);
    /* Waits until the results of all batches, such as second moments, are stored. */
    int (*flush)(kvd_collect_engine *e, kvd_err *err);
    void (*free)(kvd_collect_engine *e);
    /* Returns device and number type as text, which is valid until the engine is freed. */
    const char *(*describe)(const kvd_collect_engine *e);
    kvd_collect_times times;
};

/* Return an engine that runs s->checkpoint on the CPU, or on GPUs. On failure return NULL. */
kvd_collect_engine *kvd_collect_engine_cpu(const kvd_collect_spec *s, kvd_err *err);
kvd_collect_engine *kvd_collect_engine_cuda(const kvd_collect_spec *s, kvd_err *err);

/* Sets *batch to the number of tokens of the largest batch that fits into the total (not only the
 * free) memory of the GPU. */
int kvd_engine_cuda_batch(const kvd_config *c, kvd_dtype compute, int first_gpu, int n_gpus,
                          size_t seq_len, size_t *batch, kvd_err *err);

typedef struct {
    bool want_dump, want_moments, want_stats, want_fisher;
    /* paths of the output files; NULL for a file that is not written */
    char *dump_path, *moments_path, *stats_path, *fisher_path, *state_path;
    kvd_activations dump;
    kvd_moments sums;
    kvd_attention_stats stats;
    kvd_fisher fisher;
    /* output files; opened when the run starts, so that no other run can write files of these
     * names */
    kvd_h5 moments_file, stats_file;
    const kvd_run *run;
    kvd_run_key key;
    kvd_state state;
    bool saved;     /* true if a state file of this run is on disk */
    char note[512]; /* message about the output files for the user, or "" */
} kvd_outputs;

typedef enum { KVD_OPENED_NEW, KVD_OPENED_RESUMED, KVD_OPENED_DONE } kvd_opened;

/* Opens the output files of a run. The caller zeroes *o, and then sets these fields:
 *
 * - run, dump.dtype, stats.n_kept, fisher.n_rows
 * - key: text of all options that affect results
 * - want_dump, want_moments, want_stats, want_fisher: true for each file to write
 * - sums: model, layers and token counts of the second moments
 *
 * Arguments:
 *
 * - output: path of -o
 * - moments_file, stats_file, fisher_file: paths of these results; NULL: the path of -o
 * - resume: true: continues an interrupted run, and fails if its key was another; false: replaces
 *   the files of an interrupted run
 * - how: NEW; RESUMED if *o now holds an interrupted run's results; DONE if complete files exist */
int kvd_outputs_open(kvd_outputs *o, const char *output, const char *moments_file,
                     const char *stats_file, const char *fisher_file, bool resume, kvd_opened *how,
                     kvd_err *err);

/* Writes all data so far to disk, then the state file, from which --resume continues. */
int kvd_outputs_save(kvd_outputs *o, size_t n_sequences, size_t n_tokens, kvd_err *err);

/* Returns true if --resume can continue from the last kvd_outputs_save. */
bool kvd_outputs_kept(const kvd_outputs *o);

int kvd_outputs_finish(kvd_outputs *o, kvd_err *err);

/* Closes all output files. Removes unfinished output files, unless --resume can continue the run.
 * *o may be all zeros. */
void kvd_outputs_close(kvd_outputs *o);

/* Fails if host memory is too small for the run. *out must be filled as for kvd_outputs_open. */
int kvd_collect_check_memory(const kvd_collect_options *cfg, const kvd_checkpoint *c,
                             kvd_outputs *out, size_t batch_tokens, kvd_err *err);

/* A snapshot, in file NAME.N.h5, holds second moments of the first sequences that together have at
 * least N tokens. */

typedef struct {
    size_t asked; /* wanted number of tokens, part of the file name */
    /* number of sequences from which the second moments in this snapshot file are computed, and
     * number of their tokens */
    size_t n_sequences, n_tokens;
    char corpus_hash[KVD_CORPUS_HASH_TEXT];
    char *path;
    kvd_run run;     /* provenance of a run that ends at this snapshot, filled by the caller */
    kvd_run_key key; /* options of a run that ends at this snapshot, filled by the caller */
    bool there;      /* true if the file of the snapshot is complete and has the options in `key` */
} kvd_snapshot;

typedef struct {
    kvd_snapshot *at; /* [n] files of second moments, by increasing number of tokens */
    size_t n;
} kvd_snapshots;

/* Prepares n snapshots of a run: files with second moments of Q, K and V over only the run's first
 * sequences. Snapshot i ends with the sequence that reaches asked[i] tokens; asked[] must increase.
 * Afterwards the caller must fill `run` (provenance) and `key` (options) of each snapshot. */
int kvd_snapshots_init(kvd_snapshots *s, const size_t *asked, size_t n, const char *moments_path,
                       kvd_corpus *corpus, kvd_err *err);
void kvd_snapshots_release(kvd_snapshots *s);

/* Finds the files of second moments (snapshots) that an interrupted run has written. Fails if one
 * is missing or was made with other options. */
int kvd_snapshots_resume(kvd_snapshots *s, size_t n_sequences, kvd_err *err);

/* Finds the next unwritten snapshot (file of second moments of a run's first sequences), from index
 * `from` on, that covers more than `first` and at most `last` sequences. Returns its index, or s->n
 * if there is none. */
size_t kvd_snapshots_next(const kvd_snapshots *s, size_t from, size_t first, size_t last);

/* Writes snapshot *s: a file with the second moments *sums and the snapshot's numbers of tokens and
 * sequences. */
int kvd_snapshot_write(kvd_snapshot *s, const kvd_moments *sums, kvd_err *err);

/* Counts and times of a run, printed at its end. A resumed run counts only its own work. */
typedef struct {
    const kvd_collect_options *cfg;
    const kvd_corpus *corpus;
    const kvd_outputs *out;
    const kvd_snapshots *snapshots;
    kvd_collect_times times;
    double save_s;  /* seconds for writing state files, second moments and output files */
    double start_s; /* seconds before the first batch */
    double loop_s;  /* seconds of the loop over batches */
    double total_s; /* seconds since the start of the program */
    size_t resumed_tokens;
    bool nothing_to_do;
    const char *device; /* "cpu" or "cuda" */
    const char *engine; /* name of the attention engine; NULL if no batch ran */
} kvd_collect_summary;

int kvd_collect_summarise(const char *program, const kvd_collect_summary *s, kvd_err *err);

/* State of MPI. Rank 0 writes the result files. Every rank must call the collective functions, in
 * the same order. */

typedef struct {
    int rank, n;  /* 0 and 1 without an MPI launcher */
    bool started; /* true if MPI runs, so that kvd_ranks_end must be called */
    bool lost;    /* true if MPI failed, so that other ranks cannot be told about errors */
} kvd_ranks;

/* Silences all MPI ranks but the first. Call before the options are parsed. */
void kvd_ranks_mute(void);

/* Returns this process's index among the MPI processes on its machine, or 0 if it is unknown. */
int kvd_ranks_local(void);

/* Starts MPI if a launcher started this process. Every rank must call it. */
int kvd_ranks_start(kvd_ranks *r, kvd_err *err);

/* Returns 0 if `status` is 0 on every rank, else -1 with the lowest failing rank's message. Every
 * rank must call it. */
int kvd_ranks_agree(kvd_ranks *r, int status, kvd_err *err);

/* Fails unless every rank has the same `text`. Every rank must call it. */
int kvd_ranks_same(kvd_ranks *r, const char *what, const char *text, kvd_err *err);

/* Computes which sequences, *first .. *end - 1, this rank runs. Every rank runs whole batches. */
void kvd_ranks_share(const kvd_ranks *r, const kvd_corpus *corpus, size_t max_tokens, size_t *first,
                     size_t *end);

/* Sets *value to its maximum over ranks. Every rank must call it. */
int kvd_ranks_max(kvd_ranks *r, size_t *value, kvd_err *err);

/* Sums the second moments *sums over all ranks. On rank 0, *sums receives the result; on other
 * ranks, *sums becomes invalid. Every rank must call it. */
int kvd_ranks_sum(kvd_ranks *r, kvd_moments *sums, kvd_err *err);

/* Ends MPI. Every rank must call it. After a failed MPI call, it ends all ranks. */
int kvd_ranks_end(kvd_ranks *r, kvd_err *err);

#endif
