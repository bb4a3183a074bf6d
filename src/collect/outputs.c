/* Output files of kvdim-collect: opened, saved, continued and finished. */
#include "collect/collect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/files/output.h"
#include "common/memory.h"
#include "model/pass/forward.h"

static bool exists(const char *path, const char *suffix)
{
    char *name;
    if (asprintf(&name, "%s%s", path, suffix) < 0)
        return false;
    const bool there = access(name, F_OK) == 0;
    free(name);
    return there;
}

/* Returns 1 if file `path` is complete and was made with options *wanted. Sets *other to true if
 * the file was made with other options. */
static int complete(const char *path, const kvd_schema *schema, const kvd_run_key *wanted,
                    bool *other, kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    kvd_err ignored;
    char *key;
    if (access(path, F_OK) || kvd_h5_open(&f, path, schema, &ignored))
        /* The file does not exist, or has another format, so it is not a complete result. */
        return 0;
    int same = 0;
    if (!kvd_h5_get_text(&f, "/", "run_key", &key, &ignored)) {
        same = !kvd_run_key_same(path, "is complete, but not from this run", key, wanted, err);
        *other = *other || !same;
        free(key);
    }
    kvd_h5_close(&f, false);
    return same;
}

/* Removes files that an earlier run left next to a complete output. */
static void clean_up(const kvd_outputs *o, const char *output)
{
    kvd_output lock = {.lock_fd = -1};
    kvd_err ignored;
    if (kvd_output_begin(&lock, output, &ignored))
        return;
    unlink(o->state_path);
    kvd_output_release(&lock, false);
}

static void make_run_id(const kvd_outputs *o, char *id, size_t size)
{
    struct timespec t;
    char text[128];
    clock_gettime(CLOCK_REALTIME, &t);
    const int n = snprintf(text, sizeof text, "%s %ld %ld.%09ld", o->run->started_utc,
                           (long)getpid(), (long)t.tv_sec, t.tv_nsec);
    snprintf(id, size, "%016llx", (unsigned long long)XXH3_64bits(text, (size_t)n));
}

static int create_dump(kvd_outputs *o, bool have_lock, kvd_err *err)
{
    kvd_activations *a = &o->dump;
    const kvd_moments *m = &o->sums;
    a->model = m->model;
    memcpy(a->label, m->label, sizeof a->label);
    memcpy(a->corpus_hash, m->corpus_hash, sizeof a->corpus_hash);
    a->n_tokens = m->n_tokens;
    a->n_sequences = m->n_sequences;
    a->seq_len = m->seq_len;
    a->first_layer = m->first_layer;
    a->n_layers = m->n_layers;
    a->has_pre = m->has_pre;
    /* kvd_h5_sync below reserves the disk space, so that a full disk is found at once. */
    if (kvd_activations_create(a, o->dump_path, o->run, have_lock, err))
        return -1;
    return kvd_status(kvd_h5_put_text(&a->file, "/", "run_key", o->key.text, err) ||
                      kvd_h5_put_text(&a->file, "/", "run_id", o->state.run_id, err) ||
                      kvd_h5_sync(&o->dump.file, err));
}

static int start_new(kvd_outputs *o, bool have_lock, kvd_err *err)
{
    const kvd_dtype dtype = o->dump.dtype;
    memset(&o->state, 0, sizeof o->state);
    make_run_id(o, o->state.run_id, sizeof o->state.run_id);
    memcpy(o->state.key, o->key.text, o->key.used + 1);
    o->dump.dtype = dtype;
    if (o->want_dump && create_dump(o, have_lock, err))
        return -1;
    /* Removes the state file of the earlier run, whose activations file was just replaced. */
    if (unlink(o->state_path) && errno != ENOENT)
        return kvd_fail_errno(err, "cannot remove '%s'", o->state_path);
    return 0;
}

static int dump_fits(kvd_outputs *o, kvd_err *err)
{
    char *id;
    if (kvd_h5_get_text(&o->dump.file, "/", "run_id", &id, err))
        return 0;
    const int same = !strcmp(id, o->state.run_id) && o->dump.n_tokens == o->sums.n_tokens &&
                     o->dump.n_layers == o->sums.n_layers && o->dump.has_pre == o->sums.has_pre;
    free(id);
    return same;
}

static int verify_dump(kvd_outputs *o, kvd_err *err)
{
    uint64_t found;
    if (kvd_activations_recount(&o->dump, o->state.n_tokens, &found, err))
        return -1;
    if (found != o->state.dump_checksum)
        return kvd_fail(err,
                        "'%s.partial' is damaged: its %zu tokens do not match the checksum in '%s'",
                        o->dump_path, o->state.n_tokens, o->state_path);
    return 0;
}

static int cannot_resume(const kvd_outputs *o, kvd_err *err)
{
    const kvd_err why = *err;
    return kvd_fail(err,
                    "cannot resume: %s; remove '%s' or run without --resume to start from scratch",
                    why.msg, o->state_path);
}

static int take_up(kvd_outputs *o, kvd_opened *how, kvd_err *err)
{
    int found;
    const kvd_dtype dtype = o->dump.dtype;
    bool have_lock = false, fits = true;
    kvd_err why;
    o->saved = true; /* From here on, a failure keeps the unfinished activations file. */
    /* Locks the activations file before reading the state file, because a run that holds the lock
     * may replace the state file. */
    if (o->want_dump) {
        if (kvd_activations_reopen(&o->dump, o->dump_path, o->run, err))
            return -1;
        fits = o->dump.file.id >= 0;
        have_lock = true;
    }
    if (kvd_state_load(o->state_path, &o->state, &o->key, o->want_moments ? &o->sums : NULL,
                       o->want_stats ? &o->stats : NULL, &found, err))
        return cannot_resume(o, err);
    if (found && kvd_run_key_resume(o->state_path, o->state.key, &o->key, err))
        return -1;
    if (found && fits && (!o->want_dump || dump_fits(o, &why))) {
        if (o->want_dump && verify_dump(o, err))
            return cannot_resume(o, err);
        snprintf(o->note, sizeof o->note, "going on after %zu tokens of '%s'", o->state.n_tokens,
                 o->want_dump      ? o->dump_path
                 : o->want_moments ? o->moments_path
                                   : o->stats_path);
        *how = KVD_OPENED_RESUMED;
        return 0;
    }
    snprintf(o->note, sizeof o->note, "'%s' does not belong to '%s.partial': starting from scratch",
             o->state_path, o->dump_path);
    if (o->dump.file.id >= 0) {
        kvd_activations_abandon(&o->dump, true);
        have_lock = false;
    }
    o->saved = false;
    o->dump.dtype = dtype;
    *how = KVD_OPENED_NEW;
    return start_new(o, have_lock, err);
}

static int set_paths(kvd_outputs *o, const char *output, const char *moments_file,
                     const char *stats_file, const char *fisher_file, kvd_err *err)
{
    if ((o->want_dump && !(o->dump_path = strdup(output))) ||
        (o->want_moments && !(o->moments_path = strdup(moments_file ? moments_file : output))) ||
        (o->want_stats && !(o->stats_path = strdup(stats_file ? stats_file : output))) ||
        (o->want_fisher && !(o->fisher_path = strdup(fisher_file ? fisher_file : output))) ||
        asprintf(&o->state_path, "%s.state", output) < 0)
        return kvd_no_memory(err, "paths", strlen(output) + 8);
    return 0;
}

static void describe_stats(kvd_outputs *o)
{
    kvd_attention_stats *s = &o->stats;
    const kvd_moments *m = &o->sums;
    s->model = m->model;
    memcpy(s->label, m->label, sizeof s->label);
    memcpy(s->corpus_hash, m->corpus_hash, sizeof s->corpus_hash);
    s->n_tokens = m->n_tokens;
    s->n_requests = m->n_sequences;
    s->seq_len = m->seq_len;
    s->first_layer = m->first_layer;
    s->n_layers = m->n_layers;
    s->n_kept = s->n_kept < s->n_requests ? s->n_kept : s->n_requests;
}

static int start_stats(kvd_outputs *o, kvd_err *err)
{
    describe_stats(o);
    return kvd_attention_stats_alloc(&o->stats, err);
}

/* Returns how many bytes kvd_outputs_open allocates. */
static double bytes_of(kvd_outputs *o)
{
    double bytes = o->want_moments ? kvd_moments_bytes(&o->sums) : 0;
    if (o->want_stats)
        describe_stats(o);
    for (int f = 0; o->want_stats && f < KVD_N_A; f++)
        bytes += (double)kvd_attention_stats_count(&o->stats, (kvd_a)f) * sizeof *o->stats.word;
    return bytes;
}

static int start_fisher(kvd_outputs *o, kvd_err *err)
{
    kvd_fisher *f = &o->fisher;
    const kvd_moments *m = &o->sums;
    f->model = m->model;
    memcpy(f->label, m->label, sizeof f->label);
    memcpy(f->corpus_hash, m->corpus_hash, sizeof f->corpus_hash);
    f->n_tokens = m->n_tokens;
    f->n_sequences = m->n_sequences;
    f->seq_len = m->seq_len;
    f->first_layer = m->first_layer;
    f->n_layers = m->n_layers;
    return kvd_fisher_create(f, o->fisher_path, o->run, err);
}

int kvd_outputs_open(kvd_outputs *o, const char *output, const char *moments_file,
                     const char *stats_file, const char *fisher_file, bool resume, kvd_opened *how,
                     kvd_err *err)
{
    bool other = false;
    kvd_err difference;
    *how = KVD_OPENED_NEW;
    o->moments_file.id = o->stats_file.id = H5I_INVALID_HID;
    if (set_paths(o, output, moments_file, stats_file, fisher_file, err) ||
        (o->want_moments && kvd_moments_alloc(&o->sums, err)) ||
        (o->want_stats && start_stats(o, err)))
        return -1;
    if (resume) {
        const int dump = !o->want_dump || complete(o->dump_path, &kvd_schema_activations, &o->key,
                                                   &other, &difference);
        const int moments = !o->want_moments || complete(o->moments_path, &kvd_schema_moments,
                                                         &o->key, &other, &difference);
        const int stats = !o->want_stats || complete(o->stats_path, &kvd_schema_attention, &o->key,
                                                     &other, &difference);
        if (dump && moments && stats) {
            clean_up(o, output);
            snprintf(o->note, sizeof o->note, "'%s' is complete: nothing to do", output);
            *how = KVD_OPENED_DONE;
            return 0;
        }
    }
    if (kvd_state_check(o->state_path, err))
        return -1;
    const bool found = exists(o->state_path, "");
    /* Creates the output files at the start, so that their names are locked until the end of the
     * run. */
    if ((o->want_moments &&
         kvd_h5_create(&o->moments_file, o->moments_path, &kvd_schema_moments, o->run, err)) ||
        (o->want_stats &&
         kvd_h5_create(&o->stats_file, o->stats_path, &kvd_schema_attention, o->run, err)) ||
        (o->want_fisher && start_fisher(o, err)))
        return -1;
    if (resume && found)
        return take_up(o, how, err);
    if (resume && other) {
        *err = difference;
        return kvd_in(err, "nothing to resume");
    }
    if (resume)
        snprintf(o->note, sizeof o->note, "nothing to resume for '%s': starting from scratch",
                 output);
    else if (found || (o->want_dump && exists(output, ".partial")))
        snprintf(o->note, sizeof o->note, "replacing what an interrupted run left of '%s'", output);
    return start_new(o, false, err);
}

int kvd_outputs_save(kvd_outputs *o, size_t n_sequences, size_t n_tokens, kvd_err *err)
{
    if (o->want_dump && kvd_h5_sync(&o->dump.file, err))
        return -1;
    o->state.n_sequences = n_sequences;
    o->state.n_tokens = n_tokens;
    o->state.dump_checksum = o->want_dump ? kvd_activations_checksum(&o->dump) : 0;
    if (kvd_state_save(o->state_path, &o->state, o->want_moments ? &o->sums : NULL,
                       o->want_stats ? &o->stats : NULL, err))
        return -1;
    o->saved = true;
    return 0;
}

bool kvd_outputs_kept(const kvd_outputs *o)
{
    return o->saved && exists(o->state_path, "") &&
           (!o->want_dump || exists(o->dump_path, ".partial"));
}

/* Completes the output files, the activations file last: until then, a run can be resumed. */
int kvd_outputs_finish(kvd_outputs *o, kvd_err *err)
{
    if (o->want_moments && (kvd_moments_write(&o->moments_file, &o->sums, err) ||
                            kvd_h5_put_text(&o->moments_file, "/", "run_key", o->key.text, err) ||
                            kvd_h5_finish(&o->moments_file, err)))
        return -1;
    if (o->want_stats && (kvd_attention_stats_write(&o->stats_file, &o->stats, err) ||
                          kvd_h5_put_text(&o->stats_file, "/", "run_key", o->key.text, err) ||
                          kvd_h5_finish(&o->stats_file, err)))
        return -1;
    if (o->want_fisher && kvd_fisher_finish(&o->fisher, err))
        return -1;
    if (o->want_dump && kvd_activations_finish(&o->dump, err))
        return -1;
    if (unlink(o->state_path) && errno != ENOENT)
        return kvd_fail_errno(err, "cannot remove '%s'", o->state_path);
    o->saved = false;
    return 0;
}

void kvd_outputs_close(kvd_outputs *o)
{
    if (o->want_dump)
        kvd_activations_abandon(&o->dump, o->saved);
    if (o->want_moments) {
        kvd_h5_close(&o->moments_file, false);
        kvd_moments_release(&o->sums);
    }
    if (o->want_stats) {
        kvd_h5_close(&o->stats_file, false);
        kvd_attention_stats_release(&o->stats);
    }
    if (o->want_fisher)
        kvd_fisher_close(&o->fisher);
    free(o->fisher_path);
    free(o->dump_path);
    free(o->moments_path);
    free(o->stats_path);
    free(o->state_path);
    o->dump_path = o->moments_path = o->stats_path = o->fisher_path = o->state_path = NULL;
}

static double gradient_bytes(const kvd_outputs *out, const kvd_config *m, size_t batch_tokens,
                             bool on_gpu)
{
    const double n = (double)batch_tokens, d = m->d_model, q = (double)m->n_heads * m->d_head,
                 k = (double)m->n_kv_heads * m->d_head;
    return 2 * (double)out->sums.n_layers * k * d * sizeof(double) +
           n * (on_gpu ? 2 * d + 5 * k : (m->n_layers + 3) * d + 5 * q + 6 * k) * sizeof(float);
}

int kvd_collect_check_memory(const kvd_collect_options *cfg, const kvd_checkpoint *c,
                             kvd_outputs *out, size_t batch_tokens, kvd_err *err)
{
    const kvd_config *const m = kvd_checkpoint_config(c);
    double weights = 0, activations = 0, sums = bytes_of(out);
    if (cfg->n_snapshots)
        /* Saving the moment matrices in the middle of a batch needs a copy of them. */
        sums += kvd_moments_bytes(&out->sums);
    if (cfg->common.device != KVD_DEVICE_CUDA &&
        kvd_forward_bytes(c, batch_tokens, cfg->seq_len, cfg->rope_both, &weights, &activations,
                          err))
        return -1;
    const kvd_memory_part part[] = {
        {"weights of a layer", weights},
        {"activations", activations},
        {"sums", sums},
        {"gradients", out->want_fisher ? gradient_bytes(out, m, batch_tokens,
                                                        cfg->common.device == KVD_DEVICE_CUDA)
                                       : 0}};
    return kvd_memory_check(
        part, out->want_fisher ? 4 : 3,
        "lower --batch, --seq-len or the number of --layers, or take a smaller model", err);
}

static char *name_of(const char *moments_path, size_t asked, kvd_err *err)
{
    static const char ending[] = ".h5";
    const size_t n = strlen(moments_path), m = strlen(ending);
    const size_t keep = n > m && !strcmp(moments_path + n - m, ending) ? n - m : n;
    char *name;
    if (asprintf(&name, "%.*s.%zu%s", (int)keep, moments_path, asked, ending) < 0) {
        kvd_no_memory(err, "a path", n + 32);
        return NULL;
    }
    return name;
}

/* Returns the smallest m such that the first m sequences of the corpus have at least n tokens
 * together. */
static size_t sequences_for(const kvd_corpus *corpus, size_t n)
{
    size_t low = 1, high = kvd_corpus_n_sequences(corpus);
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (kvd_corpus_offset(corpus, middle) >= n)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int kvd_snapshots_init(kvd_snapshots *s, const size_t *asked, size_t n, const char *moments_path,
                       kvd_corpus *corpus, kvd_err *err)
{
    const size_t total = kvd_corpus_n_tokens(corpus);
    *s = (kvd_snapshots){0};
    if (!n)
        return 0;
    if (!(s->at = calloc(n, sizeof *s->at)))
        return kvd_no_memory(err, "snapshots", n * sizeof *s->at);
    s->n = n;
    for (size_t i = 0; i < n; i++) {
        kvd_snapshot *one = &s->at[i];
        if (asked[i] > total)
            return kvd_fail(err, "--snapshots %zu: the run has only %zu tokens", asked[i], total);
        one->asked = asked[i];
        one->n_sequences = sequences_for(corpus, asked[i]);
        one->n_tokens = kvd_corpus_offset(corpus, one->n_sequences);
        if (!(one->path = name_of(moments_path, asked[i], err)) ||
            kvd_corpus_hash_first(corpus, one->n_sequences, one->corpus_hash, err))
            return -1;
    }
    return 0;
}

void kvd_snapshots_release(kvd_snapshots *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->at[i].path);
        free(s->at[i].run.parameters);
    }
    free(s->at);
    *s = (kvd_snapshots){0};
}

/* Removes NAME.lock, which remains if a process is killed just after renaming its output. */
static int clear_remains(const char *path, kvd_err *err)
{
    kvd_output out;
    if (kvd_output_begin(&out, path, err))
        return -1;
    kvd_output_release(&out, false);
    return 0;
}

int kvd_snapshots_resume(kvd_snapshots *s, size_t n_sequences, kvd_err *err)
{
    for (size_t i = 0; i < s->n; i++) {
        kvd_snapshot *one = &s->at[i];
        kvd_err difference = {""};
        bool other = false;
        one->there = complete(one->path, &kvd_schema_moments, &one->key, &other, &difference);
        if (one->there && clear_remains(one->path, err))
            return -1;
        if (one->there || one->n_sequences > n_sequences)
            continue;
        if (other) {
            *err = difference;
            return kvd_in(err, "the run is past %zu tokens", one->n_tokens);
        }
        return kvd_fail(
            err,
            "the run is past the %zu tokens of '%s', which is not there: start anew, without "
            "--resume",
            one->n_tokens, one->path);
    }
    return 0;
}

size_t kvd_snapshots_next(const kvd_snapshots *s, size_t from, size_t first, size_t last)
{
    while (from < s->n && (s->at[from].there || s->at[from].n_sequences <= first))
        from++;
    return from < s->n && s->at[from].n_sequences <= last ? from : s->n;
}

int kvd_snapshot_write(kvd_snapshot *s, const kvd_moments *sums, kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    /* copy of the second moments *sums that shares its arrays, but has the numbers of tokens and
     * sequences in *s */
    kvd_moments part = *sums;
    part.n_tokens = s->n_tokens;
    part.n_sequences = s->n_sequences;
    memcpy(part.corpus_hash, s->corpus_hash, sizeof part.corpus_hash);
    if (kvd_h5_create(&f, s->path, &kvd_schema_moments, &s->run, err))
        return -1;
    if (kvd_moments_write(&f, &part, err) ||
        kvd_h5_put_text(&f, "/", "run_key", s->key.text, err) || kvd_h5_finish(&f, err)) {
        kvd_h5_close(&f, false);
        return -1;
    }
    s->there = true;
    return 0;
}
