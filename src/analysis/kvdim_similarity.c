/* kvdim-similarity: compares rotations (orthogonal matrices) of one model from different texts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/similarity.h"
#include "common/device.h"
#include "common/json.h"
#include "common/options.h"
#include "common/run.h"

static const char program[] = "kvdim-similarity";

enum { MAX_INPUTS = 256 };

typedef struct {
    kvd_common_options common;
    const char *input[MAX_INPUTS];
    size_t n_inputs;
} config;

static int check_usage(void *c, kvd_err *err)
{
    return ((const config *)c)->n_inputs > 1
               ? 0
               : kvd_fail(err, "no second SPECTRUM.h5 given to compare with the first");
}

static const kvd_option options[] = {
    {.help = "Input"},
    {"SPECTRUM.h5", .positional = true, .type = KVD_OPT_TEXTS,
     KVD_INTO_LIST(config, input, n_inputs),
     .help =
         "Rotations of one model (kvdim-spectrum): first the reference, then at least one file to "
         "compare with it"},
    KVD_OPTIONS_COMMON(config, "OUT.h5", "Write the result to OUT.h5, whole or not at all"),
    {0}};

static const kvd_program description = {
    .name = program,
    .summary =
        "Compare the rotations that were computed from different texts of one model, for all "
        "matrices that every file holds. bqk and bvw are left out because their projections are "
        "not orthogonal. Random rotations, drawn with --seed, serve as a control.",
    .usage = {"SPECTRUM.h5 SPECTRUM.h5... -o OUT.h5 [OPTION...]"},
    .any_of = {"SPECTRUM.h5", "output"},
    .examples = {"kvdim-similarity results/random.spectrum.h5 results/wiki.spectrum.h5 "
                 "results/code.spectrum.h5 -o results/similarity.h5"},
    .options = options,
    .check = check_usage};

static void print_pair(const config *cfg, const kvd_spectrum *s, const kvd_comparison *c)
{
    const size_t half = kvd_half(c->d), F = c->n_files;
    printf("\npair %s: %zu heads of d_head %zu against '%s' (%zu tokens); half = %zu dimensions\n",
           kvd_pair_name[c->pair], c->n_layers * c->n_h, c->d, s[0].label, s[0].n_tokens, half);
    printf("%-24s %9s %10s %10s %9s %9s %9s %9s %9s %10s\n", "text", "tokens", "epsilon", "delta",
           "delta/eps", "aligned", "overlap", "energy", "own", "means/eps");
    for (size_t o = 0; o < c->n_others; o++)
        printf("%-24s %9zu %10.3e %10.3e %8.2f%% %8.2f%% %9.4f %9.4f %9.4f %9.4f%%\n",
               s[o + 1].label, s[o + 1].n_tokens, c->epsilon[o], c->delta[o],
               100 * c->delta[o] / c->epsilon[o], 100 * c->delta_aligned[o] / c->epsilon[o],
               c->overlap[o * c->d + half - 1], c->energy_kept[o * c->d + half - 1],
               c->energy_own[o * c->d + half - 1], 100 * c->means_over_epsilon[o + 1]);
    double random[5] = {0};
    for (int k = 0; k < 5; k++)
        for (size_t b = 1; b < F; b++)
            random[k] += c->random[k][b] / (double)c->n_others;
    printf("%-24s %9s %10s %10s %8.2f%% %8.2f%% %9.4f %9.4f %9s %9.4f%%\n", "(a random basis)", "",
           "", "", 100 * random[0], 100 * random[1], random[2], random[3], "", 100 * random[4]);
    if (F > 2 && !cfg->common.quiet) {
        printf("energy of the column's text kept by the leading half of the row's basis:\n%-24s",
               "");
        for (size_t b = 0; b < F; b++)
            printf(" %9zu", b);
        putchar('\n');
        for (size_t a = 0; a < F; a++) {
            printf("%2zu %-21s", a, s[a].label);
            for (size_t b = 0; b < F; b++)
                printf(" %9.4f", c->energy_kept_half[a * F + b]);
            putchar('\n');
        }
    }
}

static json_t *json_of(const kvd_spectrum *s, const kvd_comparison *c)
{
    const size_t half = kvd_half(c->d);
    json_t *others = json_array();
    for (size_t o = 0; o < c->n_others; o++)
        json_array_append_new(
            others, json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "label",
                              s[o + 1].label, "n_tokens", (json_int_t)s[o + 1].n_tokens, "epsilon",
                              c->epsilon[o], "delta", c->delta[o], "delta_aligned",
                              c->delta_aligned[o], "overlap_half", c->overlap[o * c->d + half - 1],
                              "energy_kept_half", c->energy_kept[o * c->d + half - 1],
                              "energy_own_half", c->energy_own[o * c->d + half - 1],
                              "means_over_epsilon", c->means_over_epsilon[o + 1]));
    return others;
}

static int compare_all(const config *cfg, const kvd_spectrum *s, kvd_h5 *out, json_t *pairs,
                       kvd_err *err)
{
    int n = 0;
    for (int p = 0; p < KVD_N_PAIRS; p++) {
        bool everywhere = !kvd_pair_balanced((kvd_pair)p);
        for (size_t i = 0; i < cfg->n_inputs; i++)
            everywhere = everywhere && s[i].pair[p].present;
        if (!everywhere)
            continue;
        if (kvd_interrupted())
            return kvd_fail_interrupted(err);
        kvd_comparison c;
        if (kvd_compare(s, cfg->n_inputs, (kvd_pair)p, cfg->common.seed, &c, err))
            return -1;
        const bool per_query =
            s[0].pairing == KVD_PER_QUERY && s[0].pair[p].n_h == s[0].model.n_heads;
        const int status = kvd_comparison_write(out, &c, per_query ? "head" : "kv_head", err);
        if (!status && cfg->common.json)
            json_object_set_new(pairs, kvd_pair_name[p], json_of(s, &c));
        else if (!status && !cfg->common.quiet)
            print_pair(cfg, s, &c);
        kvd_comparison_release(&c);
        if (status)
            return -1;
        n++;
    }
    if (n == 0)
        return kvd_fail(err, "no pair with an orthogonal basis is in all %zu files", cfg->n_inputs);
    return 0;
}

/* Fails if the input file that was added last is a copy of an earlier input file. */
static int check_new(const kvd_run *run, kvd_err *err)
{
    const kvd_run_input *const last = &run->inputs[run->n_inputs - 1];
    for (const kvd_run_input *in = run->inputs; in < last; in++)
        if (!strcmp(in->hash, last->hash))
            return kvd_fail(
                err, "'%s' and '%s' are one file or copies of one: give spectra of two texts",
                in->path, last->path);
    return 0;
}

static int work(config *cfg, kvd_run *run, kvd_err *err)
{
    kvd_spectrum *s = calloc(cfg->n_inputs, sizeof *s);
    kvd_h5 out = {.id = H5I_INVALID_HID};
    json_t *pairs = json_object();
    int status = -1;
    if (!s || !pairs) {
        kvd_no_memory(err, "the list of spectra", cfg->n_inputs * sizeof *s);
        goto done;
    }
    if (kvd_device_cpu_only(&cfg->common, err))
        goto done;
    for (size_t i = 0; i < cfg->n_inputs; i++)
        if (kvd_run_add_input(run, cfg->input[i], err) || check_new(run, err) ||
            kvd_spectrum_load(&s[i], cfg->input[i], err))
            goto done;
    if (kvd_comparable(s, cfg->input, cfg->n_inputs, err) ||
        kvd_h5_create(&out, cfg->common.output, &kvd_schema_similarity, run, err) ||
        kvd_similarity_write_files(&out, cfg->input, s, cfg->n_inputs, err) ||
        compare_all(cfg, s, &out, pairs, err) || kvd_h5_finish(&out, err))
        goto done;
    status = 0;
    if (cfg->common.json) {
        json_t *all = json_pack("{s:s, s:s, s:s, s:b, s:s, s:i, s:O}", "program", program, "output",
                                cfg->common.output, "model", s[0].model.name, "random_weights",
                                (int)kvd_model_info_random(&s[0].model), "reference", s[0].label,
                                "d_head", s[0].model.d_head, "pairs", pairs);
        status = kvd_json_print(all, err);
    } else if (!cfg->common.quiet) {
        printf("\nepsilon, delta: as in ZACK section 4; aligned: after matching column signs; "
               "overlap, "
               "energy, own: "
               "leading half, see docs/formats.md\n");
        if (kvd_model_info_random(&s[0].model))
            printf("%s: %s\n", s[0].model.name, kvd_random_weights_note);
    }
done:
    kvd_h5_close(&out, false);
    json_decref(pairs);
    for (size_t i = 0; s && i < cfg->n_inputs; i++)
        kvd_spectrum_release(&s[i]);
    free(s);
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
