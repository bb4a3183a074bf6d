/*
 * The parts of a run of kvdim-collect: the engine that runs the passes, the files, snapshots, the
 * final report, and several ranks.
 */
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
 * Opens, saves and finishes the output files of kvdim-collect as one unit: the dump, the moments,
 * the attention statistics and the squared gradients. One of them is OUT.h5, the others have files
 * of their own. While the run is not finished there is also its state, OUT.h5.state.
 *
 * A run may be killed at any moment. Three things then hold. If OUT.h5.state exists, it describes
 * only data that is on disk. An earlier complete OUT.h5 is unchanged. A run resumed from the state
 * gives the same datasets, bit for bit, as a run without interruption. A run with squared gradients
 * saves no state.
 */

/*
 * Interface of the engines that run the model for kvdim-collect and add its Q, K and V to the
 * second moments and to the dump: one for the CPU (engine_cpu.c) and one for GPUs
 * (cuda/engine_cuda.c). kvdim_collect.c decides which sequences run, when sums are saved, and when
 * to stop.
 */

typedef struct {
    const kvd_checkpoint *checkpoint; /* borrowed */
    size_t max_tokens, max_len;
    int first_layer, last_layer;
    bool pre;                   /* true if Q and K before RoPE are recorded too */
    kvd_activations *dump;      /* borrowed; NULL means none */
    kvd_moments *sums;          /* borrowed, allocated; NULL means none */
    kvd_attention_stats *stats; /* borrowed, allocated; NULL means none. CPU only */
    kvd_fisher *fisher;         /* borrowed, created; NULL means none. CPU only */
    int threads;
    kvd_dtype compute; /* number type of the GPU's forward pass: KVD_F32 or KVD_BF16 */
    int first_gpu, n_gpus;
} kvd_collect_spec;

/*
 * Time in seconds that `run` has spent so far on each kind of work. `forward` excludes the other
 * three. Work that overlaps with the forward pass counts only as far as the pass waited for it. On
 * several GPUs `record` and `write` are those of the first GPU.
 */
typedef struct {
    /* `backward` includes recomputing values and summing gradients */
    double forward, backward, record, write;
} kvd_collect_times;

typedef struct kvd_collect_engine kvd_collect_engine;
struct kvd_collect_engine {
    /* Writes W_O and W_V of the recorded layers into the dump and adds them to the moments. */
    int (*weights)(kvd_collect_engine *e, kvd_err *err);
    /*
     * Runs a batch whose first token is token first_token of the dump.
     *
     *   into     sums that the batch is added to: spec.sums, or others of the same shape for a
     *            snapshot; NULL means none
     *   to_dump  true: the batch is written to the dump and added to spec.stats and spec.fisher
     *   give_up  called between layers; if it returns nonzero, `run` fails with its message
     *
     * After a failure the sums, the statistics and the batch's rows of the dump are invalid.
     */
    int (*run)(kvd_collect_engine *e, const kvd_batch *b, size_t first_token, kvd_moments *into,
               bool to_dump, int (*give_up)(void *ctx, kvd_err *err), void *ctx, kvd_err *err);
    /*
     * Waits until sums and dump include all batches that were run. The caller must call it before
     * it reads or saves them. Until the next run it may then change the sums of a snapshot, but not
     * spec.sums.
     */
    int (*flush)(kvd_collect_engine *e, kvd_err *err);
    void (*free)(kvd_collect_engine *e);
    /* Returns a description of the engine for messages; valid until free. */
    const char *(*describe)(const kvd_collect_engine *e);
    kvd_collect_times times;
};

/*
 * Create the CPU or the GPU engine for the run that *s describes. On failure they return NULL and
 * fill *err.
 */
kvd_collect_engine *kvd_collect_engine_cpu(const kvd_collect_spec *s, kvd_err *err);
kvd_collect_engine *kvd_collect_engine_cuda(const kvd_collect_spec *s, kvd_err *err);

/*
 * Computes the default batch size in tokens, *batch, for the GPU engine: the largest that fits into
 * the total (not the currently free) memory of the GPU.
 */
int kvd_engine_cuda_batch(const kvd_config *c, kvd_dtype compute, int first_gpu, int n_gpus,
                          size_t seq_len, size_t *batch, kvd_err *err);

typedef struct {
    bool want_dump, want_moments, want_stats, want_fisher;
    /* paths of the output files and of the state; NULL: the file is not wanted */
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
 * Returns the size in bytes of the sums (moments, statistics, gradients) that kvd_outputs_open will
 * allocate. The caller must have described the sums in *o.
 */
double kvd_outputs_bytes(kvd_outputs *o);

/*
 * Returns 1 if `path` is a complete output file of a run with this key, else 0. If it is a complete
 * file of a run with another key, also sets *other to true, and *err states the difference.
 */
int kvd_outputs_complete(const char *path, const kvd_schema *schema, const kvd_run_key *key,
                         bool *other, kvd_err *err);

/*
 * Writes everything recorded so far to disk, and then the state that describes it. n_sequences and
 * n_tokens count the data recorded so far.
 */
int kvd_outputs_save(kvd_outputs *o, size_t n_sequences, size_t n_tokens, kvd_err *err);

/*
 * Returns true if the files of the last kvd_outputs_save still exist, so that --resume can continue
 * from them.
 */
bool kvd_outputs_kept(const kvd_outputs *o);

/* Completes all output files of the run and gives them their final names. */
int kvd_outputs_finish(kvd_outputs *o, kvd_err *err);

/*
 * Closes all open output files. Keeps an unfinished dump if a state was saved. May be called on a
 * zeroed *o.
 */
void kvd_outputs_close(kvd_outputs *o);

/* Checks the host memory that a run of kvdim-collect needs, before the run allocates it. */

/*
 * Fails if the available host memory cannot hold the weights of a layer, the activations of a batch
 * of batch_tokens tokens and the sums of `out`. On a GPU only the sums are in host memory. The
 * message has the numbers and the options that lower them. The caller must have resolved the
 * options and described the sums.
 */
int kvd_collect_check_memory(const kvd_collect_options *cfg, const kvd_checkpoint *c,
                             kvd_outputs *out, size_t batch_tokens, kvd_err *err);

/*
 * Snapshots: second moments after the first tokens of a run, each in a file of its own.
 * NAME.1024.h5, next to the moments NAME.h5, holds the moments at the first end of a sequence at or
 * after 1024 tokens. It equals bit for bit, and in its run_key, the file of a run whose --tokens
 * ends there.
 *
 * A snapshot is written before the run saves a state with later tokens, so a resumed run never
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
 * Computes token counts, file names and hashes of the n snapshots after asked[n] tokens, which
 * increase. moments_path is the file of all tokens. Fails if the corpus has fewer tokens than a
 * snapshot. The caller must fill `run` and `key` of each snapshot, and check that no other output
 * of the run has its name.
 */
int kvd_snapshots_init(kvd_snapshots *s, const size_t *asked, size_t n, const char *moments_path,
                       kvd_corpus *corpus, kvd_err *err);
void kvd_snapshots_release(kvd_snapshots *s);

/*
 * Finds the snapshot files that exist, for a run that is resumed after n_sequences. If the file of
 * a snapshot that ends earlier is missing or was made with other options, fails and names the file,
 * because its sums can no longer be computed.
 */
int kvd_snapshots_resume(kvd_snapshots *s, size_t n_sequences, kvd_err *err);

/*
 * Returns the index of the first snapshot, from s->at[from] on, that is not yet written and ends in
 * sequences first+1 .. last. Returns s->n if there is none.
 */
size_t kvd_snapshots_next(const kvd_snapshots *s, size_t from, size_t first, size_t last);

/*
 * Writes the file of snapshot *s. `sums` must hold the sums of exactly its sequences, and the
 * description of the whole run.
 */
int kvd_snapshot_write(kvd_snapshot *s, const kvd_moments *sums, kvd_err *err);

/*
 * Prints the final report of a kvdim-collect run on stdout, as lines of text or as one JSON object.
 */

/*
 * Results of a run for the report. On several ranks they are those of this process; a resumed run
 * counts only its own work.
 */
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

/*
 * Lets several processes collect moments together. mpirun or srun starts them, each takes a part of
 * the sequences, and rank 0 adds all sums and writes the files. Only ranks.c uses MPI.
 *
 * Without a launcher there is one rank, MPI is not started, and every function below does nothing
 * and succeeds. A program that was built without MPI (macro KVD_MPI not set) fails if a launcher
 * starts it on several ranks, because each would do the whole work. Every rank must call the
 * functions marked "Collective", in the same order.
 */

typedef struct {
    int rank, n;  /* rank 0 of n = 1 without a launcher */
    bool started; /* MPI runs, so kvd_ranks_end must be called */
    bool lost;    /* MPI failed, so the other ranks may not know of a failure here */
} kvd_ranks;

/*
 * Redirects stdout and stderr of all ranks but one to /dev/null until kvd_ranks_start, because
 * wrong usage and --help print the same on every rank. Call it before the options are parsed. The
 * rank comes from the launcher's environment, so MPI need not run yet.
 */
void kvd_ranks_mute(void);

/*
 * Returns the index of this process among those that the launcher started on this machine, or 0 if
 * the launcher does not state it.
 */
int kvd_ranks_local(void);

/* Starts MPI if a launcher started this process. Collective. */
int kvd_ranks_start(kvd_ranks *r, kvd_err *err);

/*
 * Returns 0 if status is 0 on every rank. Otherwise returns -1 on every rank, and *err holds the
 * message of the lowest rank that failed, with its number. Collective: a rank that has failed calls
 * it too, so that no rank waits for it forever.
 */
int kvd_ranks_agree(kvd_ranks *r, int status, kvd_err *err);

/*
 * Fails unless `text` is the same on every rank as on rank 0. The message calls the text `what`.
 * Collective.
 */
int kvd_ranks_same(kvd_ranks *r, const char *what, const char *text, kvd_err *err);

/*
 * Computes the sequences *first .. *end-1 of this rank, maybe none. They form complete batches of
 * kvd_corpus_batch(max_tokens), the same as in a run of one process. The rounding of a float32
 * product depends on the rows that are multiplied together. With equal batches, the sums differ
 * from those of one process only by the order of adding in float64.
 */
void kvd_ranks_share(const kvd_ranks *r, const kvd_corpus *corpus, size_t max_tokens, size_t *first,
                     size_t *end);

/* Replaces *value by the largest *value of all ranks. Collective. */
int kvd_ranks_max(kvd_ranks *r, size_t *value, kvd_err *err);

/*
 * Adds the sums over tokens of all ranks and stores the totals in the sums of rank 0; the sums of
 * the other ranks are invalid afterwards. Sums over weights are not changed. Collective.
 */
int kvd_ranks_sum(kvd_ranks *r, kvd_moments *sums, kvd_err *err);

/*
 * Ends MPI, if it was started. If MPI had failed, ends all ranks at once and does not return.
 * Collective.
 */
int kvd_ranks_end(kvd_ranks *r, kvd_err *err);

#endif
