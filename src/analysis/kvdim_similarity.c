/*
 * kvdim-similarity: how alike the bases of one model are when they come from different texts.
 *
 * Reads kvdim/spectrum files. Writes kvdim/similarity.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/compare.h"
#include "common/args.h"
#include "common/run.h"

static const char program[] = "kvdim-similarity";
static const kvd_schema schema = {"similarity", 1, "Likeness of the bases found on different texts"};

enum { MAX_INPUTS = 256 };

typedef struct {
    kvd_common_options common;
    const char *input[MAX_INPUTS];
    size_t n_inputs;
} config;

static error_t parse(int key, char *arg, struct argp_state *state)
{
    config *cfg = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &cfg->common;
        return 0;
    case ARGP_KEY_ARG:
        if (cfg->n_inputs == MAX_INPUTS)
            argp_error(state, "more than %d files", (int)MAX_INPUTS);
        cfg->input[cfg->n_inputs++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (cfg->n_inputs < 2)
            argp_error(state, "REFERENCE.h5 and at least one OTHER.h5 are wanted");
        if (!cfg->common.output)
            argp_error(state, "no -o OUT.h5 given");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- writing ---------------------------------------------------------------------------------- */

static int put(kvd_h5 *f, const kvd_comparison *c, const char *name, const char *long_name, int rank,
               const hsize_t *dims, const char *const *axes, const double *data, kvd_err *err)
{
    char path[64];
    snprintf(path, sizeof path, "/%s/%s", kvd_pair_name[c->pair], name);
    kvd_h5_spec spec = {
        .path = path, .long_name = long_name, .units = "1", .type = H5T_IEEE_F64LE, .rank = rank};
    for (int i = 0; i < rank; i++) {
        spec.dims[i] = dims[i];
        spec.axes[i] = axes[i];
    }
    return kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, data, err);
}

static int write_pair(kvd_h5 *f, const kvd_comparison *c, const char *h_axis, kvd_err *err)
{
    const hsize_t mean_dims[] = {c->n_others, c->d}, head_dims[] = {c->n_others, c->n_layers, c->n_h, c->d},
                  matrix_dims[] = {c->n_files, c->n_files}, file_dims[] = {c->n_files};
    const char *const mean_axes[] = {"other", "dim"}, *const head_axes[] = {"other", "layer", h_axis, "dim"},
                      *const matrix_axes[] = {"basis_file", "data_file"}, *const file_axes[] = {"data_file"};
    const struct {
        const char *name, *long_name;
        int rank;
        const hsize_t *dims;
        const char *const *axes;
        const double *data;
    } row[] = {
        {"epsilon", "mean |R| of the file: ZACK section 4", 1, mean_dims, mean_axes, c->epsilon},
        {"delta", "mean |R_reference - R|: ZACK section 4", 1, mean_dims, mean_axes, c->delta},
        {"delta_aligned", "delta after matching the sign of every column", 1, mean_dims, mean_axes,
         c->delta_aligned},
        {"overlap", "mean squared cosine of the principal angles of the leading m = dim + 1 columns", 2,
         mean_dims, mean_axes, c->overlap},
        {"energy_kept",
         "energy of the file's data in the leading m = dim + 1 columns of the reference's basis", 2,
         mean_dims, mean_axes, c->energy_kept},
        {"energy_own", "the same in the file's own basis: the most that any basis keeps", 2, mean_dims,
         mean_axes, c->energy_own},
        {"per_head/epsilon", "epsilon per head", 3, head_dims, head_axes, c->head_epsilon},
        {"per_head/delta", "delta per head", 3, head_dims, head_axes, c->head_delta},
        {"per_head/delta_aligned", "delta_aligned per head", 3, head_dims, head_axes, c->head_delta_aligned},
        {"per_head/overlap", "overlap per head", 4, head_dims, head_axes, c->head_overlap},
        {"per_head/energy_kept", "energy_kept per head", 4, head_dims, head_axes, c->head_energy_kept},
        {"matrix/delta_over_epsilon", "delta between the files over epsilon of the data file", 2, matrix_dims,
         matrix_axes, c->delta_over_epsilon},
        {"matrix/delta_aligned_over_epsilon", "the same with signs of columns matched", 2, matrix_dims,
         matrix_axes, c->aligned_over_epsilon},
        {"matrix/overlap_half", "overlap of the leading halves", 2, matrix_dims, matrix_axes,
         c->overlap_half},
        {"matrix/energy_kept_half", "energy of the data file in the leading half of the basis file", 2,
         matrix_dims, matrix_axes, c->energy_kept_half},
        {"random/delta_over_epsilon", "delta of a random basis over epsilon of the file", 1, file_dims,
         file_axes, c->random[0]},
        {"random/delta_aligned_over_epsilon", "the same with signs of columns matched", 1, file_dims,
         file_axes, c->random[1]},
        {"random/overlap_half", "overlap with the leading half of a random basis", 1, file_dims, file_axes,
         c->random[2]},
        {"random/energy_kept_half", "energy of the file in the leading half of a random basis", 1, file_dims,
         file_axes, c->random[3]},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (put(f, c, row[i].name, row[i].long_name, row[i].rank, row[i].dims, row[i].axes, row[i].data, err))
            return -1;
    return 0;
}

/* Texts of fixed length, zero-padded: what every reader of HDF5 takes. */
static int write_texts(kvd_h5 *f, const char *path, const char *long_name, const char *const *text, size_t n,
                       kvd_err *err)
{
    size_t longest = 1;
    for (size_t i = 0; i < n; i++)
        longest = strlen(text[i]) > longest ? strlen(text[i]) : longest;
    char *all = calloc(n, longest);
    hid_t type = H5Tcopy(H5T_C_S1);
    int status = -1;
    if (!all) {
        kvd_no_memory(err, path, n * longest);
        goto done;
    }
    if (type < 0 || H5Tset_size(type, longest) < 0 || H5Tset_strpad(type, H5T_STR_NULLPAD) < 0 ||
        H5Tset_cset(type, H5T_CSET_UTF8) < 0) {
        kvd_fail(err, "cannot make a text type of %zu bytes for '%s'", longest, path);
        goto done;
    }
    for (size_t i = 0; i < n; i++)
        memcpy(all + i * longest, text[i], strlen(text[i]));
    const kvd_h5_spec spec = {path, long_name, "1", type, 1, {n}, {"file"}};
    status = kvd_h5_write(f, &spec, type, all, err);
done:
    if (type >= 0)
        H5Tclose(type);
    free(all);
    return status;
}

static int write_files(kvd_h5 *f, const config *cfg, const kvd_spectrum *s, kvd_err *err)
{
    const char *label[MAX_INPUTS], *hash[MAX_INPUTS], *method[MAX_INPUTS];
    uint64_t n_tokens[MAX_INPUTS];
    for (size_t i = 0; i < cfg->n_inputs; i++) {
        label[i] = s[i].label;
        hash[i] = s[i].corpus_hash;
        method[i] = s[i].method;
        n_tokens[i] = s[i].n_tokens;
    }
    const kvd_h5_spec tokens = {
        "/files/n_tokens", "tokens that the spectrum was made from", "1", H5T_STD_U64LE, 1, {cfg->n_inputs},
        {"file"}};
    return kvd_model_info_write(f, &s[0].model, err) ||
                   kvd_h5_put_text(f, "/", "reference", s[0].label, err) ||
                   kvd_h5_put_int(f, "/", "reference_tokens", (int64_t)s[0].n_tokens, err) ||
                   kvd_h5_put_text(f, "/", "rope", s[0].rope, err) ||
                   kvd_h5_put_text(f, "/", "pairing", kvd_pairing_name[s[0].pairing], err) ||
                   kvd_h5_put_int(f, "/", "first_layer", s[0].first_layer, err) ||
                   write_texts(f, "/files/label", "what tables call the texts; file 0 is the reference",
                               label, cfg->n_inputs, err) ||
                   write_texts(f, "/files/path", "spectrum file as given", cfg->input, cfg->n_inputs, err) ||
                   write_texts(f, "/files/hash", "hash of the texts", hash, cfg->n_inputs, err) ||
                   write_texts(f, "/files/method", "svd, tsqr or gram", method, cfg->n_inputs, err) ||
                   kvd_h5_write(f, &tokens, H5T_NATIVE_UINT64, n_tokens, err)
               ? -1
               : 0;
}

/* ---- summary ---------------------------------------------------------------------------------- */

static void print_pair(const config *cfg, const kvd_spectrum *s, const kvd_comparison *c)
{
    const size_t half = kvd_half(c->d), F = c->n_files;
    printf("\npair %s: %zu heads of d_head %zu against '%s' (%zu tokens); half = %zu dimensions\n",
           kvd_pair_name[c->pair], c->n_layers * c->n_h, c->d, s[0].label, s[0].n_tokens, half);
    printf("%-24s %9s %10s %10s %9s %9s %9s %9s %9s\n", "text", "tokens", "epsilon", "delta", "delta/eps",
           "aligned", "overlap", "energy", "own");
    for (size_t o = 0; o < c->n_others; o++)
        printf("%-24s %9zu %10.3e %10.3e %8.2f%% %8.2f%% %9.4f %9.4f %9.4f\n", s[o + 1].label,
               s[o + 1].n_tokens, c->epsilon[o], c->delta[o], 100 * c->delta[o] / c->epsilon[o],
               100 * c->delta_aligned[o] / c->epsilon[o], c->overlap[o * c->d + half - 1],
               c->energy_kept[o * c->d + half - 1], c->energy_own[o * c->d + half - 1]);
    double random[4] = {0};
    for (int k = 0; k < 4; k++)
        for (size_t b = 1; b < F; b++)
            random[k] += c->random[k][b] / (double)c->n_others;
    printf("%-24s %9s %10s %10s %8.2f%% %8.2f%% %9.4f %9.4f %9s\n", "(a random basis)", "", "", "",
           100 * random[0], 100 * random[1], random[2], random[3], "");
    if (F > 2 && !cfg->common.quiet) {
        printf("energy of the column's text kept by the leading half of the row's basis:\n%-24s", "");
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
        json_array_append_new(others,
                              json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "label", s[o + 1].label,
                                        "n_tokens", (json_int_t)s[o + 1].n_tokens, "epsilon", c->epsilon[o],
                                        "delta", c->delta[o], "delta_aligned", c->delta_aligned[o],
                                        "overlap_half", c->overlap[o * c->d + half - 1], "energy_kept_half",
                                        c->energy_kept[o * c->d + half - 1], "energy_own_half",
                                        c->energy_own[o * c->d + half - 1]));
    return others;
}

/* ---- main ------------------------------------------------------------------------------------- */

static int compare_all(const config *cfg, const kvd_spectrum *s, kvd_h5 *out, json_t *pairs, kvd_err *err)
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
        const bool per_query = s[0].pairing == KVD_PER_QUERY && s[0].pair[p].n_h == s[0].model.n_heads;
        const int status = write_pair(out, &c, per_query ? "head" : "kv_head", err);
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
        if (kvd_run_add_input(run, cfg->input[i], err) || kvd_spectrum_load(&s[i], cfg->input[i], err))
            goto done;
    if (kvd_comparable(s, cfg->input, cfg->n_inputs, err) ||
        kvd_h5_create(&out, cfg->common.output, &schema, run, err) || write_files(&out, cfg, s, err) ||
        compare_all(cfg, s, &out, pairs, err) || kvd_h5_finish(&out, err))
        goto done;
    status = 0;
    if (cfg->common.json) {
        json_t *all =
            json_pack("{s:s, s:s, s:s, s:b, s:s, s:i, s:O}", "program", program, "output", cfg->common.output,
                      "model", s[0].model.name, "random_weights", (int)kvd_model_info_random(&s[0].model),
                      "reference", s[0].label, "d_head", s[0].model.d_head, "pairs", pairs);
        if (!all || json_dumpf(all, stdout, JSON_INDENT(2)))
            status = kvd_fail(err, "cannot write the JSON summary");
        json_decref(all);
        putchar('\n');
    } else if (!cfg->common.quiet) {
        printf("\nepsilon, delta: as in ZACK section 4; aligned: after matching column signs; overlap, "
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
    const struct argp argp = {
        .parser = parse,
        .args_doc = "REFERENCE.h5 OTHER.h5... -o OUT.h5",
        .children = kvd_common_options_child,
        .doc = "Compares the bases of spectrum files of one model, for every pair that all of them hold (bqk "
               "and bvw "
               "have no orthogonal basis and are left out). --seed draws the random basis that serves as "
               "control.\v"
               "Example:\n  kvdim-similarity results/random.spectrum.h5 results/wiki.spectrum.h5 "
               "results/code.spectrum.h5 -o results/similarity.h5"};
    static config cfg = {.common = {.seed = 1}};
    kvd_run run = {0};
    kvd_err err = {""};
    kvd_args_parse(program, &argp, argc, argv, &cfg);
    int status = kvd_run_start(&run, program, argc, argv, &cfg.common, &err);
    if (!status)
        status = work(&cfg, &run, &err);
    kvd_run_release(&run);
    return kvd_run_exit(program, status, &err);
}
