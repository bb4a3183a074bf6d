/* kvdim-collect: runs a checkpoint over texts and records Q, K and V, or statistics of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collect/collect.h"
#include "collect/options.h"
#include "common/device.h"
#include "common/progress.h"
#include "common/run.h"
#include "model/model_info.h"
#include "model/text/corpus.h"

static const char program[] = "kvdim-collect";

typedef struct {
    kvd_collect_options *cfg;
    kvd_run run;
    kvd_ranks ranks;
    kvd_checkpoint *checkpoint;
    kvd_corpus *corpus;
    int first_gpu;
    kvd_collect_engine *engine;
    kvd_outputs out;
    kvd_snapshots snapshots;
    kvd_moments part; /* second moments of a snapshot that ends inside a batch */
    bool stuck;       /* true if opening the output files failed, so that --resume would fail too */
    size_t batch_tokens; /* number of tokens for which buffers are allocated */
    uint32_t *id;
    size_t *offset;
    double batch_started, last_save, save_seconds, start_seconds, loop_seconds;
    size_t resumed_tokens;
    size_t sequence, last; /* number of finished sequences, and end of the range of this process */
} collector;

static int resolve_device(collector *c, kvd_err *err)
{
    kvd_collect_options *cfg = c->cfg;
    char name[sizeof c->run.gpu];
    if (kvd_device_resolve(&cfg->common, name, sizeof name, err))
        return -1;
    kvd_device_note(name, &c->run);
    if (cfg->common.device == KVD_DEVICE_CPU) {
        if (cfg->compute != KVD_F32)
            return kvd_fail(err, "--compute %s: the CPU computes in f32",
                            kvd_dtype_name(cfg->compute));
        return cfg->gpus ? kvd_fail(err, "--gpus %d: this runs on the CPU", cfg->gpus) : 0;
    }
    const int there = kvd_cuda_count();
    cfg->gpus = cfg->gpus ? cfg->gpus : 1;
    if (cfg->gpus > there)
        return kvd_fail(err, "--gpus %d: %d can be used here", cfg->gpus, there);
    /* Ranks on one machine use different GPUs, if there are enough. */
    c->first_gpu = kvd_ranks_local() % (there / cfg->gpus) * cfg->gpus;
    return 0;
}

static int resolve_options(const collector *c, kvd_err *err)
{
    kvd_collect_options *cfg = c->cfg;
    const kvd_config *model = kvd_checkpoint_config(c->checkpoint);
    if (kvd_model_seq_len(model, &cfg->seq_len, err))
        return -1;
    if (!cfg->batch && cfg->common.device == KVD_DEVICE_CUDA) {
        if (kvd_engine_cuda_batch(model, cfg->compute, c->first_gpu, cfg->gpus, cfg->seq_len,
                                  &cfg->batch, err))
            return -1;
        /* Limits the batch, because the backward pass keeps the input of every layer. */
        if (cfg->fisher && cfg->batch > 4096)
            cfg->batch = 4096;
    }
    if (!cfg->batch)
        cfg->batch = 2048;
    if (cfg->attention && !cfg->attention_requests)
        cfg->attention_requests = 16;
    if (cfg->last_layer < 0)
        cfg->last_layer = model->n_layers - 1;
    if (cfg->last_layer >= model->n_layers)
        return kvd_fail(err, "--layers %d-%d: the model has layers 0 to %d", cfg->first_layer,
                        cfg->last_layer, model->n_layers - 1);
    return 0;
}

static kvd_corpus_spec spec_of(const collector *c)
{
    const kvd_collect_options *cfg = c->cfg;
    return (kvd_corpus_spec){.text = cfg->text,
                             .n_text = cfg->n_text,
                             .field = cfg->field,
                             .no_special = cfg->no_special,
                             .ids = cfg->ids,
                             .n_random = cfg->n_random,
                             .seed = cfg->common.seed,
                             .max_tokens = cfg->tokens,
                             .seq_len = cfg->seq_len,
                             .vocab_size =
                                 (size_t)kvd_checkpoint_config(c->checkpoint)->vocab_size};
}

static int open_corpus(collector *c, kvd_err *err)
{
    const kvd_corpus_spec spec = spec_of(c);
    c->corpus = kvd_model_corpus(c->checkpoint, &spec, c->ranks.rank ? NULL : program, err);
    return c->corpus ? 0 : -1;
}

static int add_inputs(collector *c, kvd_err *err)
{
    const kvd_collect_options *cfg = c->cfg;
    return kvd_status(kvd_checkpoint_add_input(c->checkpoint, &c->run, err) ||
                      kvd_run_add_inputs(&c->run, cfg->text, cfg->n_text, err) ||
                      kvd_run_add_inputs(&c->run, &cfg->ids, 1, err));
}

static int record_options(const collector *c, size_t tokens, const char *corpus, kvd_run *run,
                          kvd_run_key *key, kvd_err *err)
{
    const kvd_collect_facts facts = {.cfg = c->cfg,
                                     .model = c->out.sums.model.hash,
                                     .corpus = corpus,
                                     .label = c->out.sums.label,
                                     .n_tokens = tokens,
                                     .ranks = c->ranks.n,
                                     .gpu = c->run.gpu};
    return kvd_collect_record(&facts, run, key, err);
}

static int describe_snapshots(collector *c, kvd_err *err)
{
    const kvd_collect_options *cfg = c->cfg;
    const char *moments = cfg->moments_file ? cfg->moments_file : cfg->common.output;
    if (kvd_snapshots_init(&c->snapshots, cfg->snapshots, cfg->n_snapshots, moments, c->corpus,
                           err))
        return -1;
    for (size_t i = 0; i < c->snapshots.n; i++) {
        kvd_snapshot *s = &c->snapshots.at[i];
        char option[40];
        kvd_output_name name[KVD_COLLECT_OUTPUTS + 1] = {
            [KVD_COLLECT_OUTPUTS] = {.option = option, .path = s->path}};
        kvd_collect_output_names(cfg, name);
        snprintf(option, sizeof option, "--snapshots %zu", s->asked);
        if (kvd_output_distinct(name, KVD_COLLECT_OUTPUTS + 1, err))
            return -1;
        s->run = c->run;
        s->run.parameters = NULL;
        s->run.n_parameters = 0;
        if (record_options(c, s->n_tokens, s->corpus_hash, &s->run, &s->key, err))
            return -1;
    }
    return 0;
}

static int make_buffers(collector *c, kvd_err *err)
{
    const kvd_collect_options *cfg = c->cfg;
    c->id = malloc(c->batch_tokens * sizeof *c->id);
    /* A sequence has at least 2 tokens, so a batch has at most batch_tokens / 2 sequences. */
    c->offset = malloc((c->batch_tokens / 2 + 2) * sizeof *c->offset);
    if (!c->id || !c->offset)
        return kvd_no_memory(err, "a batch", c->batch_tokens * sizeof *c->id);
    const kvd_collect_spec spec = {.checkpoint = c->checkpoint,
                                   .max_tokens = c->batch_tokens,
                                   .max_len = cfg->seq_len,
                                   .first_layer = cfg->first_layer,
                                   .last_layer = cfg->last_layer,
                                   .pre = cfg->rope_both,
                                   .dump = c->out.want_dump ? &c->out.dump : NULL,
                                   .sums = c->out.want_moments ? &c->out.sums : NULL,
                                   .stats = c->out.want_stats ? &c->out.stats : NULL,
                                   .fisher = c->out.want_fisher ? &c->out.fisher : NULL,
                                   .threads = c->run.threads,
                                   .compute = cfg->compute,
                                   .first_gpu = c->first_gpu,
                                   .n_gpus = cfg->gpus};
    c->engine = cfg->common.device == KVD_DEVICE_CUDA ? kvd_collect_engine_cuda(&spec, err)
                                                      : kvd_collect_engine_cpu(&spec, err);
    return c->engine ? 0 : -1;
}

/* After an interrupt, fails if the current batch has taken more than 2 seconds. */
static int give_up(void *ctx, kvd_err *err)
{
    const collector *c = ctx;
    return kvd_interrupted() && kvd_run_elapsed(&c->run) - c->batch_started > 2
               ? kvd_fail_interrupted(err)
               : 0;
}

static int flush(collector *c, kvd_err *err)
{
    const double start = kvd_run_elapsed(&c->run);
    const int status = c->engine->flush(c->engine, err);
    c->save_seconds += kvd_run_elapsed(&c->run) - start;
    return status;
}

static int save(collector *c, kvd_err *err)
{
    const double start = kvd_run_elapsed(&c->run);
    if (c->engine->flush(c->engine, err) ||
        kvd_outputs_save(&c->out, c->sequence, kvd_corpus_offset(c->corpus, c->sequence), err))
        return -1;
    c->last_save = kvd_run_elapsed(&c->run);
    c->save_seconds += c->last_save - start;
    return 0;
}

/* Returns true if it is time to save the state of the run. Saving takes at most a tenth of the
 * run's time. */
static bool save_is_due(const collector *c, double last_cost)
{
    const double every = c->cfg->save_every, since = kvd_run_elapsed(&c->run) - c->last_save;
    return every <= 0 || (since >= every && since >= 9 * last_cost);
}

static int run_sequences(collector *c, size_t first, size_t n, kvd_moments *into, bool to_dump,
                         kvd_err *err)
{
    const size_t before = kvd_corpus_offset(c->corpus, first);
    kvd_corpus_offsets(c->corpus, first, n, c->offset);
    if (kvd_corpus_read(c->corpus, first, n, c->id, err))
        return -1;
    const kvd_batch batch = {
        .n_sequences = n, .offset = c->offset, .first_sequence = first, .id = c->id};
    c->batch_started = kvd_run_elapsed(&c->run);
    return c->engine->run(c->engine, &batch, before, into, to_dump, give_up, c, err);
}

/* Stores in c->part the second moments of all sequences so far plus the next n sequences, which may
 * be only a part of a batch. */
static int run_part(collector *c, size_t n, kvd_err *err)
{
    kvd_moments *whole = &c->out.sums;
    if (!c->part.gram[KVD_G_Q]) {
        c->part = *whole;
        if (kvd_moments_alloc(&c->part, err))
            return -1;
    }
    if (flush(c, err))
        return -1;
    for (int g = 0; g < KVD_N_G; g++)
        if (whole->gram[g])
            memcpy(c->part.gram[g], whole->gram[g],
                   kvd_moments_count(whole, (kvd_g)g) * sizeof(double));
    return run_sequences(c, c->sequence, n, &c->part, false, err);
}

static int write_snapshot(collector *c, kvd_snapshot *s, const kvd_moments *sums, kvd_err *err)
{
    const double start = kvd_run_elapsed(&c->run);
    const int status =
        kvd_status(c->engine->flush(c->engine, err) || kvd_snapshot_write(s, sums, err));
    c->save_seconds += kvd_run_elapsed(&c->run) - start;
    return status;
}

static int run_batch(collector *c, kvd_err *err)
{
    const size_t first = c->sequence, n = kvd_corpus_batch(c->corpus, first, c->cfg->batch);
    kvd_snapshots *s = &c->snapshots;
    size_t done = 0, i = kvd_snapshots_next(s, 0, first, first + n - 1);
    for (; i < s->n; i = kvd_snapshots_next(s, i + 1, first, first + n - 1)) {
        const size_t part = s->at[i].n_sequences - first;
        if ((part != done && run_part(c, part, err)) || write_snapshot(c, &s->at[i], &c->part, err))
            return -1;
        done = part;
    }
    if (run_sequences(c, first, n, c->out.want_moments ? &c->out.sums : NULL, true, err))
        return -1;
    for (i = kvd_snapshots_next(s, 0, first, first + n); i < s->n;
         i = kvd_snapshots_next(s, i + 1, first, first + n))
        if (write_snapshot(c, &s->at[i], &c->out.sums, err))
            return -1;
    /* Counts these sequences as done only after writing the second moments that a resumed run
     * requires. */
    c->sequence += n;
    return 0;
}

static int run_all(collector *c, kvd_err *err)
{
    kvd_progress progress;
    int status = 0;
    double last_cost = 0;
    /* The progress bar counts only remaining tokens, so that its rate is right. */
    const size_t begin = kvd_corpus_offset(c->corpus, c->sequence);
    size_t rounds = 0;
    for (size_t s = c->sequence; s < c->last; s += kvd_corpus_batch(c->corpus, s, c->cfg->batch))
        rounds++;
    if (kvd_ranks_max(&c->ranks, &rounds, err))
        status = -1;
    kvd_progress_start(&progress, "collect", "tokens",
                       (double)(kvd_corpus_offset(c->corpus, c->last) - begin),
                       c->cfg->common.quiet || c->ranks.rank > 0);
    c->last_save = kvd_run_elapsed(&c->run);
    /* Ranks synchronise after every batch, so that all end soon after one fails. */
    for (size_t round = 0; !status && round < rounds; round++) {
        const size_t whole = c->sequence;
        /* Only a run on one rank and without --fisher can be resumed. */
        const bool alone = c->ranks.n == 1 && !c->out.want_fisher;
        if (c->sequence < c->last)
            status = run_batch(c, err);
        kvd_progress_step(&progress, (double)(kvd_corpus_offset(c->corpus, c->sequence) - begin));
        if (kvd_interrupted()) {
            /* Saves the collected statistics only if they include the whole last batch, not a part
             * of it. */
            if (alone && c->sequence > whole && save(c, err))
                status = -1;
            else
                status = kvd_fail_interrupted(err);
        } else if (alone && !status && save_is_due(c, last_cost)) {
            const double before = c->save_seconds;
            status = save(c, err);
            last_cost = c->save_seconds - before;
        }
        status = kvd_ranks_agree(&c->ranks, status, err);
    }
    kvd_progress_end(&progress);
    return status;
}

static int record_tokens(collector *c, kvd_err *err)
{
    const size_t n_sequences = kvd_corpus_n_sequences(c->corpus);
    uint32_t *sequence = malloc(2 * c->batch_tokens * sizeof *sequence), *position;
    int status = 0;
    if (!sequence)
        return kvd_no_memory(err, "a batch", 2 * c->batch_tokens * sizeof *sequence);
    position = sequence + c->batch_tokens;
    if (n_sequences > UINT32_MAX)
        status = kvd_fail(err, "%zu sequences are too many for a dump", n_sequences);
    for (size_t first = 0, n; !status && first < n_sequences; first += n) {
        n = kvd_corpus_batch(c->corpus, first, c->cfg->batch);
        size_t at = 0;
        for (size_t s = first; s < first + n; s++)
            for (size_t i = 0; i < kvd_corpus_length(c->corpus, s); i++, at++) {
                sequence[at] = (uint32_t)s;
                position[at] = (uint32_t)i;
            }
        status = kvd_corpus_read(c->corpus, first, n, c->id, err) ||
                 kvd_activations_put_tokens(&c->out.dump, kvd_corpus_offset(c->corpus, first), at,
                                            c->id, sequence, position, err);
    }
    free(sequence);
    return kvd_status(status);
}

static int describe(collector *c, kvd_err *err)
{
    const kvd_collect_options *cfg = c->cfg;
    kvd_moments *m = &c->out.sums;
    const kvd_config *model = kvd_checkpoint_config(c->checkpoint);
    kvd_model_info_set(&m->model, model, kvd_checkpoint_path(c->checkpoint), c->run.inputs[0].hash,
                       kvd_checkpoint_dtype(c->checkpoint));
    const kvd_corpus_spec spec = spec_of(c);
    kvd_corpus_label(&spec, cfg->label, m->label, sizeof m->label);
    snprintf(m->corpus_hash, sizeof m->corpus_hash, "%s", kvd_corpus_hash(c->corpus));
    m->n_tokens = kvd_corpus_n_tokens(c->corpus);
    m->n_sequences = kvd_corpus_n_sequences(c->corpus);
    m->seq_len = cfg->seq_len;
    m->first_layer = cfg->first_layer;
    m->n_layers = cfg->last_layer - cfg->first_layer + 1;
    m->has_pre = cfg->rope_both;
    c->out.dump.dtype = cfg->dtype;
    c->out.run = &c->run;
    c->out.want_moments = cfg->moments;
    c->out.want_stats = cfg->attention;
    c->out.want_dump = kvd_collect_dumps(cfg);
    c->out.want_fisher = cfg->fisher;
    c->out.stats.n_kept = cfg->attention_requests;
    c->out.fisher.n_rows = cfg->fisher_rows;
    return record_options(c, m->n_tokens, m->corpus_hash, &c->run, &c->out.key, err);
}

static int summarise(const collector *c, bool did_nothing, kvd_err *err)
{
    const kvd_collect_summary s = {.cfg = c->cfg,
                                   .corpus = c->corpus,
                                   .out = &c->out,
                                   .snapshots = &c->snapshots,
                                   .times = c->engine ? c->engine->times : (kvd_collect_times){0},
                                   .save_s = c->save_seconds,
                                   .start_s = c->start_seconds,
                                   .loop_s = c->loop_seconds,
                                   .total_s = kvd_run_elapsed(&c->run),
                                   .resumed_tokens = c->resumed_tokens,
                                   .nothing_to_do = did_nothing,
                                   .device =
                                       c->cfg->common.device == KVD_DEVICE_CUDA ? "cuda" : "cpu",
                                   .engine = c->engine ? c->engine->describe(c->engine) : NULL};
    return kvd_collect_summarise(program, &s, err);
}

static int check_ranks(const collector *c, kvd_err *err)
{
    const kvd_collect_options *cfg = c->cfg;
    if (c->ranks.n == 1)
        return 0;
    if (cfg->attention || cfg->fisher)
        return kvd_fail(err, "--%s works on one rank only, not on %d",
                        cfg->attention ? "attention" : "fisher", c->ranks.n);
    if (!cfg->moments || cfg->moments_file)
        return kvd_fail(err, "%d ranks cannot write a dump: give --moments without a file",
                        c->ranks.n);
    if (cfg->resume || cfg->n_snapshots)
        return kvd_fail(err, "%s works on one rank only, not on %d",
                        cfg->resume ? "--resume" : "--snapshots", c->ranks.n);
    return 0;
}

static int prepare(collector *c, kvd_err *err)
{
    kvd_collect_options *cfg = c->cfg;
    if (cfg->attention && cfg->common.device == KVD_DEVICE_AUTO)
        /* Only the CPU engine computes attention statistics. */
        cfg->common.device = KVD_DEVICE_CPU;
    return kvd_status(
        check_ranks(c, err) || resolve_device(c, err) ||
        !(c->checkpoint = cfg->shape ? kvd_checkpoint_of_shape(cfg->shape, KVD_SHAPE_SEED, err)
                                     : kvd_checkpoint_open(cfg->model, err)) ||
        (cfg->untrained && kvd_checkpoint_untrain(c->checkpoint, cfg->untrained, err)) ||
        resolve_options(c, err) || add_inputs(c, err) || open_corpus(c, err) || describe(c, err) ||
        describe_snapshots(c, err));
}

static int open_outputs(collector *c, kvd_opened *how, kvd_err *err)
{
    const kvd_collect_options *cfg = c->cfg;
    *how = KVD_OPENED_NEW;
    c->last = kvd_corpus_n_sequences(c->corpus);
    if (c->ranks.rank > 0)
        return kvd_moments_alloc(&c->out.sums, err);
    if (kvd_outputs_open(&c->out, cfg->common.output, cfg->moments_file, cfg->attention_file,
                         cfg->fisher_file, cfg->resume, how, err)) {
        c->stuck = true;
        return -1;
    }
    if (*c->out.note)
        fprintf(stderr, "%s: %s\n", program, c->out.note);
    const size_t n_done = *how == KVD_OPENED_DONE ? c->last : c->out.state.n_sequences;
    if (cfg->resume && kvd_snapshots_resume(&c->snapshots, n_done, err)) {
        c->stuck = true;
        return -1;
    }
    c->sequence = c->out.state.n_sequences;
    c->resumed_tokens = c->out.state.n_tokens;
    return 0;
}

static int begin(collector *c, kvd_opened *how, kvd_err *err)
{
    const kvd_collect_options *cfg = c->cfg;
    c->batch_tokens = cfg->batch > cfg->seq_len ? cfg->batch : cfg->seq_len;
    if (c->batch_tokens > kvd_corpus_n_tokens(c->corpus))
        c->batch_tokens = kvd_corpus_n_tokens(c->corpus);
    if (kvd_collect_check_memory(cfg, c->checkpoint, &c->out, c->batch_tokens, err) ||
        open_outputs(c, how, err))
        return -1;
    if (*how == KVD_OPENED_DONE)
        return 0;
    if (make_buffers(c, err) || (c->out.want_dump && record_tokens(c, err)) ||
        (!c->ranks.rank && c->engine->weights(c->engine, err)))
        return -1;
    if (c->ranks.n > 1)
        kvd_ranks_share(&c->ranks, c->corpus, c->cfg->batch, &c->sequence, &c->last);
    return 0;
}

static int collect(collector *c, kvd_err *err)
{
    kvd_ranks *ranks = &c->ranks;
    kvd_opened how = KVD_OPENED_NEW;
    if (kvd_ranks_agree(ranks, prepare(c, err), err) ||
        kvd_ranks_same(ranks, "program", kvd_git_revision(), err) ||
        kvd_ranks_same(ranks, "GPU", c->run.gpu, err) ||
        kvd_ranks_same(ranks, "model", c->out.sums.model.hash, err) ||
        kvd_ranks_same(ranks, "corpus", kvd_corpus_hash(c->corpus), err) ||
        kvd_ranks_agree(ranks, begin(c, &how, err), err))
        return -1;
    if (how == KVD_OPENED_DONE)
        return summarise(c, true, err);
    c->start_seconds = kvd_run_elapsed(&c->run);
    if (run_all(c, err) || kvd_ranks_agree(ranks, flush(c, err), err) ||
        kvd_ranks_agree(ranks, kvd_ranks_sum(ranks, &c->out.sums, err), err))
        return -1;
    c->loop_seconds = kvd_run_elapsed(&c->run) - c->start_seconds;
    if (kvd_ranks_agree(ranks, ranks->rank ? 0 : kvd_outputs_finish(&c->out, err), err))
        return -1;
    c->save_seconds += kvd_run_elapsed(&c->run) - c->start_seconds - c->loop_seconds;
    return ranks->rank ? 0 : summarise(c, false, err);
}

static void release(collector *c)
{
    if (c->engine)
        /* Frees the engine first, because its threads may still write into the output files. */
        c->engine->free(c->engine);
    kvd_outputs_close(&c->out);
    kvd_moments_release(&c->part);
    kvd_snapshots_release(&c->snapshots);
    kvd_collect_options_release(c->cfg);
    kvd_corpus_close(c->corpus);
    kvd_checkpoint_close(c->checkpoint);
    free(c->id);
    free(c->offset);
    kvd_run_release(&c->run);
}

int main(int argc, char **argv)
{
    static kvd_collect_options cfg;
    collector c = {.cfg = &cfg};
    kvd_err err = {""};
    kvd_ranks_mute();
    kvd_collect_parse(argc, argv, &cfg);
    int status = kvd_ranks_start(&c.ranks, &err);
    if (!status)
        status = kvd_ranks_agree(
            &c.ranks, kvd_run_start(&c.run, program, argc, argv, &cfg.common, &err), &err);
    if (!status)
        status = collect(&c, &err);
    if (status && c.out.saved && !c.stuck && kvd_outputs_kept(&c.out))
        fprintf(stderr,
                "%s: what was recorded is kept; to continue: the same command with --resume\n",
                program);
    else if (status && c.out.saved && !c.stuck)
        fprintf(stderr, "%s: what was recorded is lost: unfinished files of '%s' were removed\n",
                program, cfg.common.output);
    release(&c);
    /* Only rank 0 prints an error that all ranks have. */
    const bool silent = c.ranks.rank > 0 && !c.ranks.lost;
    const int result = silent ? status != 0 : kvd_run_exit(program, status, &err);
    if (kvd_ranks_end(&c.ranks, &err))
        return kvd_run_exit(program, -1, &err);
    return result;
}
