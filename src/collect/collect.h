/*
 * The parts of a run of kvdim-collect: the engine that runs the forward pass, the output files,
 * snapshots, the final report, and the division of the work among several processes (MPI ranks).
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
 * Opens, saves and finishes the output files of kvdim-collect as one unit: the recorded Q, K and V
 * (activations), their second moments, the attention statistics and the squared gradients. One of
 * them is OUT.h5, the others have files of their own. While the run is not finished there is also
 * a file OUT.h5.state, from which the run can be resumed.
 *
 * A run may be killed at any moment. Three things then hold. If OUT.h5.state exists, it describes
 * only data that is on disk. An earlier complete OUT.h5 is unchanged. A run resumed from the state
 * gives the same datasets, bit for bit, as a run without interruption. A run with squared
 * gradients saves no state.
 */

/*
 * Interface of the engines that run the model for kvdim-collect. An engine writes Q, K and V to
 * the activations file and adds them to the second moments. One engine is for the CPU
 * (engine_cpu.c) and one for GPUs (cuda/engine_cuda.c). kvdim_collect.c decides which sequences
 * run, when sums are saved, and when to stop.
 */

typedef struct {
    const kvd_checkpoint *checkpoint; /* model that is run, borrowed */
    size_t max_tokens, max_len;
    int first_layer, last_layer;
    bool pre; /* true if Q and K before RoPE are recorded too */
    /* Activations file that receives Q, K and V, borrowed; NULL means none. */
    kvd_activations *dump;
    /* Second moments to add to, allocated and owned by the caller; NULL means none. */
    kvd_moments *sums;
    /*
     * Attention statistics to add to, allocated and owned by the caller; NULL means none. CPU
     * only.
     */
    kvd_attention_stats *stats;
    /*
     * Sums of squared gradients to add to, created and owned by the caller; NULL means none. CPU
     * only.
     */
    kvd_fisher *fisher;
    int threads;
    kvd_dtype compute; /* number type of the GPU's forward pass: KVD_F32 or KVD_BF16 */
    int first_gpu, n_gpus;
} kvd_collect_spec;

/*
 * Time in seconds that an engine's `run` has spent so far on each kind of work. `forward` excludes
 * the other three kinds. Work that overlaps with the forward pass counts only as far as the pass
 * waited for it. On several GPUs `record` and `write` are those of the first GPU.
 */
typedef struct {
    /*
     * Seconds of each kind of work. `backward` includes recomputing values of the forward pass and
     * summing gradients.
     */
    double forward, backward, record, write;
} kvd_collect_times;

typedef struct kvd_collect_engine kvd_collect_engine;
struct kvd_collect_engine {
    /*
     * Writes the weights W_O and W_V of the recorded layers into the activations file and adds
     * them to the second moments.
     */
    int (*weights)(kvd_collect_engine *e, kvd_err *err);
    /*
     * Runs a batch whose first token has index first_token in the activations file.
     *
     *   into     second moments that the batch is added to: spec.sums, or others of the same shape
     *            for a snapshot; NULL means none
     *   to_dump  true: the batch is written to the activations file and added to spec.stats and
     *            spec.fisher
     *   give_up  called between layers; if it returns nonzero, `run` fails with its message
     *
     * After a failure the sums, the statistics and the batch's rows of the activations file are
     * invalid.
     */
    int (*run)(kvd_collect_engine *e, const kvd_batch *b, size_t first_token, kvd_moments *into,
               bool to_dump, int (*give_up)(void *ctx, kvd_err *err), void *ctx, kvd_err *err);
    /*
     * Waits until the second moments and the activations file include all batches that were run.
     * The caller must call it before it reads or saves them. After the call the caller may change
     * second moments that it gave to `run` in the argument `into`, for example those of a snapshot.
     * It must never change spec.sums.
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
    /*
     * Paths of the output files and of the state file (for --resume). NULL: the file is not
     * wanted.
     */
    char *dump_path, *moments_path, *stats_path, *fisher_path, *state_path;
    kvd_activations dump;
    kvd_moments sums;
    kvd_attention_stats stats;
    kvd_fisher fisher;
    /*
     * Files of second moments and of attention statistics. They are open from the start of the run,
     * to hold the locks on their names.
     */
    kvd_h5 moments_file, stats_file;
    const kvd_run *run;
    kvd_run_key key;
    kvd_state state;
    bool saved; /* true if a state file of this run is on disk, from which --resume can continue */
    char note[512]; /* message for the user after the files have been opened, or "" */
} kvd_outputs;

typedef enum { KVD_OPENED_NEW, KVD_OPENED_RESUMED, KVD_OPENED_DONE } kvd_opened;

/*
 * Opens the output files of a run. The caller must have zeroed *o and set run, key, want_*, in
 * o->sums the description (model, label, corpus_hash, n_tokens, n_sequences, seq_len, layers,
 * has_pre), in o->dump the dtype, in o->stats n_kept and in o->fisher n_rows. o->key is the run
 * key: the text of all options that affect the results.
 *
 *   output        the path of -o
 *   moments_file  file of the second moments; NULL: `output`
 *   stats_file    file of the attention statistics; NULL: `output`
 *   fisher_file   file of the squared gradients; NULL: `output`
 *   how           result. NEW: nothing is done yet. RESUMED: o->state says how much is done, and
 *                 o->sums and o->stats hold the sums so far. DONE: complete files of a run with
 *                 the same run key exist, and no file is open.
 *
 * If `resume` is true and the state or a complete file was made with another run key, fails and
 * names the first option that differs. If `resume` is false, the files of an interrupted run are
 * replaced.
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
 * Returns 1 if `path` is a complete output file of a run with the options in *key, else 0. *key is
 * a run key: the text of all options that affect the results. If the file is complete but its run
 * had other options, also sets *other to true, and *err states the difference.
 */
int kvd_outputs_complete(const char *path, const kvd_schema *schema, const kvd_run_key *key,
                         bool *other, kvd_err *err);

/*
 * Writes all data recorded so far to disk, and then the state file that describes it. n_sequences
 * and n_tokens count the data recorded so far.
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
 * Closes all open output files. An unfinished activations file is kept if a state was saved. May
 * be called on a zeroed *o.
 */
void kvd_outputs_close(kvd_outputs *o);

/*
 * Checks the host memory before a run of kvdim-collect allocates it. Fails if the available memory
 * cannot hold the weights of a layer, the activations of a batch of batch_tokens tokens and the
 * sums of `out`. On a GPU only the sums are in host memory. The message has the numbers and the
 * options that lower them. The caller must have resolved the options and described the sums.
 */
int kvd_collect_check_memory(const kvd_collect_options *cfg, const kvd_checkpoint *c,
                             kvd_outputs *out, size_t batch_tokens, kvd_err *err);

/*
 * Snapshots: second moments after the first tokens of a run, each in a file of its own.
 * NAME.1024.h5, next to the moments NAME.h5, holds the moments at the first end of a sequence at or
 * after 1024 tokens. It equals bit for bit, and in its run_key (text of the options), the file of a
 * run whose --tokens ends there.
 *
 * A snapshot is written before the run saves a state with later tokens, so a resumed run never
 * needs earlier sums.
 */

typedef struct {
    size_t asked; /* number of tokens for which the user asked; part of the snapshot's file name */
    /* Numbers of sequences and tokens in the snapshot: whole sequences, n_tokens >= asked. */
    size_t n_sequences, n_tokens;
    char corpus_hash[40]; /* content hash of the sequences in the snapshot */
    char *path;
    /*
     * Description of a run that would end after n_tokens, written to the snapshot's file as its
     * provenance. The caller fills it. The snapshot owns only run.parameters (the list of options
     * and values); all else in `run` is borrowed.
     */
    kvd_run run;
    /*
     * Options that affect the results of a run that would end after n_tokens, as text (run key).
     * The caller fills it.
     */
    kvd_run_key key;
    /* True if the snapshot's file is complete on disk and was made with the options in `key`. */
    bool there;
} kvd_snapshot;

typedef struct {
    kvd_snapshot *at; /* snapshots by increasing number of tokens, [n] */
    size_t n;
} kvd_snapshots;

/*
 * Computes token counts, file names and hashes of n snapshots. asked [n] holds the wanted numbers
 * of tokens, increasing. moments_path is the file of the moments of all tokens. Fails if the corpus
 * has fewer tokens than a snapshot. The caller must fill the fields `run` (provenance) and `key`
 * (options as text) of each snapshot, and check that no other output of the run has its name.
 */
int kvd_snapshots_init(kvd_snapshots *s, const size_t *asked, size_t n, const char *moments_path,
                       kvd_corpus *corpus, kvd_err *err);
void kvd_snapshots_release(kvd_snapshots *s);

/*
 * Finds the snapshot files that exist, for a run that is resumed after n_sequences sequences. If a
 * snapshot that ends before that point has no file, or a file made with other options, fails and
 * names the file: its sums can no longer be computed.
 */
int kvd_snapshots_resume(kvd_snapshots *s, size_t n_sequences, kvd_err *err);

/*
 * Returns the index of the next snapshot to write while sequences first + 1 .. last of the run
 * (counted from 1) are processed. It is the first snapshot, from s->at[from] on, that is not yet
 * written and ends after sequence `first`. Returns s->n if there is none or if it ends after
 * sequence `last`.
 */
size_t kvd_snapshots_next(const kvd_snapshots *s, size_t from, size_t first, size_t last);

/*
 * Writes the file of snapshot *s. `sums` must hold the sums of exactly the snapshot's sequences,
 * and the description of the whole run.
 */
int kvd_snapshot_write(kvd_snapshot *s, const kvd_moments *sums, kvd_err *err);

/*
 * Prints the final report of a kvdim-collect run on stdout, as lines of text or as one JSON object.
 */

/*
 * Results of a kvdim-collect run for its final report. On several ranks they are those of this
 * process. A resumed run counts only the work since it was resumed.
 */
typedef struct {
    const kvd_collect_options *cfg;
    const kvd_corpus *corpus;
    const kvd_outputs *out;
    const kvd_snapshots *snapshots;
    kvd_collect_times times;
    double save_s;  /* seconds spent saving, writing snapshots and completing the files */
    double start_s; /* seconds before the first batch */
    double loop_s;  /* seconds spent in the loop over batches */
    double total_s; /* seconds since the start of the program */
    size_t resumed_tokens;
    bool nothing_to_do;
    const char *device; /* device that computed: "cpu" or "cuda" */
    const char *engine; /* description of the engine; NULL if no batch ran */
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
    int rank, n;  /* rank of this process and number of ranks; 0 and 1 without an MPI launcher */
    bool started; /* true: MPI was started, so kvd_ranks_end must be called */
    bool lost;    /* true: MPI failed, so other ranks may not learn of a failure of this rank */
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

/* Starts MPI if a launcher started this process. Collective: every rank must call it. */
int kvd_ranks_start(kvd_ranks *r, kvd_err *err);

/*
 * Returns 0 if status is 0 on every rank. Otherwise returns -1 on every rank, and *err holds the
 * message of the lowest rank that failed, with its number. Collective: a rank that has failed calls
 * it too, so that no rank waits for it forever.
 */
int kvd_ranks_agree(kvd_ranks *r, int status, kvd_err *err);

/*
 * Fails unless `text` is the same on every rank as on rank 0. The error message calls the text
 * `what`. Collective: every rank must call it.
 */
int kvd_ranks_same(kvd_ranks *r, const char *what, const char *text, kvd_err *err);

/*
 * Computes the sequences *first .. *end - 1 that this rank processes, maybe none. They form
 * complete batches of kvd_corpus_batch(max_tokens), the same as in a run of one process. The
 * rounding of a float32 product depends on the rows that are multiplied together. With equal
 * batches, the sums differ from those of one process only by the order of adding in float64.
 */
void kvd_ranks_share(const kvd_ranks *r, const kvd_corpus *corpus, size_t max_tokens, size_t *first,
                     size_t *end);

/* Replaces *value by the largest *value of all ranks. Collective: every rank must call it. */
int kvd_ranks_max(kvd_ranks *r, size_t *value, kvd_err *err);

/*
 * Adds the second moments of Q, K and V of all ranks and stores the totals in *sums of rank 0;
 * *sums of the other ranks is invalid afterwards. Moments of weights are not changed. Collective:
 * every rank must call it.
 */
int kvd_ranks_sum(kvd_ranks *r, kvd_moments *sums, kvd_err *err);

/*
 * Ends MPI, if it was started. If MPI had failed, ends all ranks at once and does not return.
 * Collective: every rank must call it.
 */
int kvd_ranks_end(kvd_ranks *r, kvd_err *err);

#endif
