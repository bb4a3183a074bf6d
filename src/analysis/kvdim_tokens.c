/* kvdim-tokens: finds tokens that are important to attention. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/tokens.h"
#include "common/device.h"
#include "common/json.h"
#include "common/options.h"
#include "common/run.h"

static const char program[] = "kvdim-tokens";

enum { MAX_INPUTS = 256 };

typedef struct {
    kvd_common_options common;
    const char *input[MAX_INPUTS];
    size_t n_inputs;
    double share, group_overlap;
} config;

static const kvd_option options[] = {
    {.help = "Input"},
    {"ATTENTION.h5", .positional = true, .type = KVD_OPT_TEXTS,
     KVD_INTO_LIST(config, input, n_inputs),
     .help =
         "Attention statistics of one model (kvdim-collect --attention); several files are added "
         "up"},

    {.help = "Study"},
    {"share", .type = KVD_OPT_NUMBER, KVD_INTO(config, share), .low = 0.001, .high = 0.5,
     .initial = "0.35",
     .help = "Fraction of a sequence's tokens that count as important, and fraction that count as "
             "unimportant; the default is ZDC's"},
    {"group-overlap", .type = KVD_OPT_NUMBER, KVD_INTO(config, group_overlap), .high = 1,
     .initial = "0.95",
     .help = "A layer joins the group of the layers before it if its important tokens, and its "
             "unimportant tokens, overlap with those of the group's first layer by more than this "
             "fraction; the default is ZDC's"},
    KVD_OPTIONS_COMMON(config, "OUT.h5", "Write the result to OUT.h5, whole or not at all"),
    {0}};

static const kvd_program description = {
    .name = program,
    .summary =
        "Study which tokens matter to attention: range of attention scores per layer, overlap of "
        "important and unimportant tokens between layers, spread of attention compared with the "
        "spread of value norms, and number of tokens that receive most of the attention, per layer "
        "and head.",
    .usage = {"ATTENTION.h5... -o OUT.h5 [OPTION...]"},
    .any_of = {"ATTENTION.h5", "output"},
    .examples = {"kvdim-collect data/models/kvdim-6m --text book.txt --tokens 8192 --attention -o "
                 "att.h5",
                 "kvdim-tokens att.h5 -o tokens.h5"},
    .options = options};

enum { P95 = 1 }; /* index of the level 95 % in the array kvd_critical_level */

static const char legend[] =
    "\nscore: attention scores of all heads before the softmax, with quantiles\n"
    "received: spread of the attention that tokens receive, as log10 of the 99.9 % over the 0.1 % "
    "quantile; norm of V: the same of value vectors\n"
    "tokens with 95 % of mass: fewest tokens that receive 95 % of a layer's attention, mean and "
    "standard deviation over requests, and share of a request's tokens\n"
    "group by denominator: layers of one number share important and unimportant tokens, ranked by "
    "their softmax denominators (--group-overlap)\n"
    "distance: number of layers from one layer to the other";

static void print_layers(const kvd_tokens *t)
{
    const size_t n = (size_t)t->n_layers;
    printf("%5s %9s %9s %9s %9s %11s %11s %26s %11s\n", "layer", "score", "score", "score", "score",
           "received", "norm of V", "tokens with 95 % of mass", "group by");
    printf("%5s %9s %9s %9s %9s %11s %11s %8s %8s %8s %11s\n", "", "min", "0.1 %", "99.9 %", "max",
           "decades", "decades", "mean", "sd", "share", "denominator");
    for (size_t l = 0; l < n; l++) {
        const double *curve = t->data[KVD_T_SCORE_CURVE] + l * KVD_N_CURVE;
        printf("%5zu %9.2f %9.2f %9.2f %9.2f %11.2f %11.2f %8.1f %8.1f %7.1f%% %11.0f\n",
               (size_t)t->first_layer + l, t->data[KVD_T_SCORE_MIN][l], curve[1],
               curve[KVD_N_CURVE - 2], t->data[KVD_T_SCORE_MAX][l],
               t->data[KVD_T_RECEIVED_DECADES][l], t->data[KVD_T_VALUE_DECADES][l],
               t->data[KVD_T_LAYER_MEAN][P95 * n + l], t->data[KVD_T_LAYER_SD][P95 * n + l],
               100 * t->data[KVD_T_LAYER_SHARE][P95 * n + l],
               t->data[KVD_T_GROUP][KVD_RANK_DENOMINATOR * n + l]);
    }
}

static void print_distances(const kvd_tokens *t)
{
    printf("\ntokens that two layers share, %% of the lowest / of the highest %.3g %% (means over "
           "layer "
           "pairs; by "
           "chance: %.3g %%), ranked by\n%8s",
           100 * t->share, 100 * t->share, "distance");
    for (int by = 0; by < KVD_N_RANKINGS; by++)
        printf(" %19s", kvd_ranking_name[by]);
    putchar('\n');
    for (int d = 1; d < t->n_layers; d++) {
        printf("%8d", d);
        for (int by = 0; by < KVD_N_RANKINGS; by++)
            printf("       %5.1f / %5.1f",
                   100 * kvd_tokens_at_distance(t, KVD_T_UNIMPORTANT, (kvd_ranking)by, d).mean,
                   100 * kvd_tokens_at_distance(t, KVD_T_IMPORTANT, (kvd_ranking)by, d).mean);
        putchar('\n');
    }
}

static void print_plain(const config *cfg, const kvd_tokens *t)
{
    printf("%s: %zu tokens in %zu requests (%s), %zu of them token by token\n", t->model.name,
           t->n_tokens, t->n_requests, t->label, t->n_kept);
    if (kvd_model_info_random(&t->model))
        printf("%s: %s\n", t->model.name, kvd_random_weights_note);
    print_layers(t);
    if (t->n_layers > 1)
        print_distances(t);
    puts(legend);
    printf("\n%s\n", cfg->common.output);
}

static json_t *list(const double *x, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(a, json_real(x[i]));
    return a;
}

static json_t *json_distances(const kvd_tokens *t, kvd_ranking by)
{
    json_t *all = json_array();
    for (int d = 1; d < t->n_layers; d++) {
        const kvd_token_overlap low = kvd_tokens_at_distance(t, KVD_T_UNIMPORTANT, by, d),
                                high = kvd_tokens_at_distance(t, KVD_T_IMPORTANT, by, d);
        json_array_append_new(all,
                              json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "distance", d,
                                        "unimportant_mean", low.mean, "unimportant_min", low.least,
                                        "unimportant_max", low.most, "important_mean", high.mean,
                                        "important_min", high.least, "important_max", high.most));
    }
    return all;
}

static int print_json(const config *cfg, const kvd_tokens *t, kvd_err *err)
{
    const size_t n = (size_t)t->n_layers;
    json_t *overlap = json_object();
    for (int by = 0; by < KVD_N_RANKINGS; by++)
        json_object_set_new(overlap, kvd_ranking_name[by],
                            json_pack("{s:o, s:o}", "by_distance",
                                      json_distances(t, (kvd_ranking)by), "group",
                                      list(t->data[KVD_T_GROUP] + (size_t)by * n, n)));
    json_t *all = json_pack(
        "{s:s, s:s, s:s, s:b, s:s, s:I, s:I, s:I, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "program", program, "output", cfg->common.output, "model", t->model.name, "random_weights",
        (int)kvd_model_info_random(&t->model), "label", t->label, "tokens", (json_int_t)t->n_tokens,
        "requests", (json_int_t)t->n_requests, "requests_kept", (json_int_t)t->n_kept, "share",
        t->share, "group_overlap", t->group_overlap, "score_min", list(t->data[KVD_T_SCORE_MIN], n),
        "score_max", list(t->data[KVD_T_SCORE_MAX], n), "received_decades",
        list(t->data[KVD_T_RECEIVED_DECADES], n), "value_decades",
        list(t->data[KVD_T_VALUE_DECADES], n), "critical_95_mean",
        list(t->data[KVD_T_LAYER_MEAN] + P95 * n, n), "critical_95_sd",
        list(t->data[KVD_T_LAYER_SD] + P95 * n, n), "overlap", overlap);
    return kvd_json_print(all, err);
}

static int load(const config *cfg, kvd_run *run, kvd_attention_stats *sum,
                char (*hash)[sizeof sum->corpus_hash], kvd_err *err)
{
    for (size_t i = 0; i < cfg->n_inputs; i++) {
        kvd_attention_stats next;
        if (kvd_interrupted())
            return kvd_fail_interrupted(err);
        if (kvd_run_add_input(run, cfg->input[i], err) ||
            kvd_attention_stats_load(i ? &next : sum, cfg->input[i], err))
            return -1;
        memcpy(hash[i], i ? next.corpus_hash : sum->corpus_hash, sizeof hash[i]);
        if (!i)
            continue;
        const int status = kvd_attention_stats_add(sum, cfg->input[0], &next, cfg->input[i], err);
        kvd_attention_stats_release(&next);
        if (status)
            return -1;
        for (size_t j = 0; j < i; j++)
            if (kvd_corpus_hash_same(hash[i], hash[j]))
                return kvd_fail(err, "'%s' and '%s' are of the same texts", cfg->input[j],
                                cfg->input[i]);
    }
    return 0;
}

static int work(config *cfg, kvd_run *run, kvd_err *err)
{
    static char hash[MAX_INPUTS][sizeof((kvd_attention_stats *)0)->corpus_hash];
    kvd_attention_stats sum = {0};
    kvd_tokens t = {0};
    kvd_h5 out = {.id = H5I_INVALID_HID};
    int status = -1;
    if (kvd_device_cpu_only(&cfg->common, err) || load(cfg, run, &sum, hash, err) ||
        kvd_run_parameter(run, "share", err, "%.17g", cfg->share) ||
        kvd_run_parameter(run, "group-overlap", err, "%.17g", cfg->group_overlap) ||
        kvd_tokens_study(&sum, cfg->share, cfg->group_overlap, &t, err) ||
        kvd_h5_create(&out, cfg->common.output, &kvd_schema_tokens, run, err) ||
        kvd_tokens_write(&out, &t, err) || kvd_h5_finish(&out, err))
        goto done;
    status = 0;
    if (cfg->common.json)
        status = print_json(cfg, &t, err);
    else if (!cfg->common.quiet)
        print_plain(cfg, &t);
done:
    kvd_h5_close(&out, false);
    kvd_tokens_release(&t);
    kvd_attention_stats_release(&sum);
    return status;
}

int main(int argc, char **argv)
{
    static config cfg;
    kvd_run run = {0};
    kvd_err err = {""};
    kvd_options_parse(&description, argc, argv, &cfg);
    int status = kvd_run_start(&run, program, argc, argv, &cfg.common, &err);
    if (!status)
        status = work(&cfg, &run, &err);
    kvd_run_release(&run);
    return kvd_run_exit(program, status, &err);
}
