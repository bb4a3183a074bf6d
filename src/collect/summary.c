#include "collect/collect.h"

#include <stdio.h>
#include <sys/stat.h>

#include "common/json.h"

typedef struct {
    double forward, backward, record, write; /* shares in percent */
} shares;

static shares shares_of(const kvd_collect_summary *s)
{
    const double write = s->times.write + s->save_s,
                 all = s->times.forward + s->times.backward + s->times.record + write;
    const double percent = all > 0 ? 100 / all : 0;
    return (shares){s->times.forward * percent, s->times.backward * percent,
                    s->times.record * percent, write * percent};
}

static double rate_of(const kvd_collect_summary *s)
{
    const size_t n = kvd_corpus_n_tokens(s->corpus) - s->resumed_tokens;
    return s->loop_s > 0 ? (double)n / s->loop_s : 0;
}

static double file_bytes(const char *path)
{
    struct stat st;
    return path && !stat(path, &st) ? (double)st.st_size : 0;
}

static int print_json(const char *program, const kvd_collect_summary *s, kvd_err *err)
{
    const kvd_outputs *o = s->out;
    const shares share = shares_of(s);
    json_t *j = json_pack(
        "{s:s, s:s, s:b, s:s, s:s?, s:s?, s:s?, s:s?, s:s?, s:I, s:I, s:I, s:I, s:I, s:b, s:f, "
        "s:f, s:f, s:f, "
        "s:f, s:{s:f, s:f, s:f, s:f}}",
        "program", program, "model", o->sums.model.name, "random_weights",
        (int)kvd_model_info_random(&o->sums.model), "device", s->device, "engine", s->engine,
        "activations", o->dump_path, "moments", o->moments_path, "attention", o->stats_path,
        "fisher", o->fisher_path, "tokens", (json_int_t)kvd_corpus_n_tokens(s->corpus), "sequences",
        (json_int_t)kvd_corpus_n_sequences(s->corpus), "documents",
        (json_int_t)kvd_corpus_n_documents(s->corpus), "tokens_left_out",
        (json_int_t)kvd_corpus_n_dropped(s->corpus), "resumed_tokens",
        (json_int_t)s->resumed_tokens, "nothing_to_do", (int)s->nothing_to_do, "bytes",
        file_bytes(o->dump_path) + file_bytes(o->moments_path) + file_bytes(o->stats_path) +
            file_bytes(o->fisher_path),
        "seconds", s->total_s, "start_seconds", s->start_s, "loop_seconds", s->loop_s,
        "tokens_per_s", rate_of(s), "time_percent", "forward", share.forward, "backward",
        share.backward, "record", share.record, "write", share.write);
    return kvd_json_print(j, err);
}

static void print_lines(const kvd_collect_summary *s)
{
    const kvd_outputs *o = s->out;
    const shares share = shares_of(s);
    printf("%zu tokens in %zu sequences of %zu documents (%s)\n", kvd_corpus_n_tokens(s->corpus),
           kvd_corpus_n_sequences(s->corpus), kvd_corpus_n_documents(s->corpus), o->sums.label);
    if (kvd_model_info_random(&o->sums.model))
        printf("%s: %s\n", o->sums.model.name, kvd_random_weights_note);
    if (kvd_corpus_n_dropped(s->corpus))
        printf("%zu tokens left out: alone at the end of their document\n",
               kvd_corpus_n_dropped(s->corpus));
    if (s->resumed_tokens)
        printf("%zu tokens were there from the interrupted run\n", s->resumed_tokens);
    if (o->want_dump)
        printf("activations %s, %.1f MB, %s\n", o->dump_path, file_bytes(o->dump_path) / 1e6,
               kvd_dtype_name(s->cfg->dtype));
    if (o->want_moments)
        printf("moments %s, %.1f MB\n", o->moments_path, file_bytes(o->moments_path) / 1e6);
    if (o->want_stats)
        printf("attention %s, %.1f MB, %zu of %zu requests token by token\n", o->stats_path,
               file_bytes(o->stats_path) / 1e6, o->stats.n_kept, o->stats.n_requests);
    if (o->want_fisher)
        printf(
            "squared gradients %s, %.1f MB, %zu tokens one by one; loss %.4f nats per predicted token\n",
            o->fisher_path, file_bytes(o->fisher_path) / 1e6, o->fisher.n_rows,
            o->fisher.loss / (double)o->fisher.n_predicted);
    for (size_t i = 0; i < s->snapshots->n; i++)
        printf("snapshot %s, %zu tokens\n", s->snapshots->at[i].path, s->snapshots->at[i].n_tokens);
    printf("on %s\n", s->engine);
    printf("%.1f s, %.0f tokens/s; time: forward %.1f %%, ", s->total_s, rate_of(s), share.forward);
    if (o->want_fisher)
        printf("backward %.1f %%, ", share.backward);
    printf("record %.1f %%, write %.1f %%\n", share.record, share.write);
}

int kvd_collect_summarise(const char *program, const kvd_collect_summary *s, kvd_err *err)
{
    if (s->cfg->common.json)
        return print_json(program, s, err);
    if (!s->cfg->common.quiet && !s->nothing_to_do)
        print_lines(s);
    return 0;
}
