/* kvdim-export: multiplies projections into a checkpoint's weights, or writes the projections to a
 * file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/device.h"
#include "common/json.h"
#include "export/export.h"
#include "model/model_info.h"

static const char program[] = "kvdim-export";

typedef struct {
    kvd_export_options *cfg;
    kvd_run run;
    kvd_checkpoint *checkpoint;
    const kvd_config *model;
    kvd_model_info info;
    kvd_method_files files;
    kvd_point point;
    /* projections to multiply into the weights; field `point` of this struct owns their matrices */
    kvd_dims folded;
    kvd_rates_note note;
    kvd_folded_list list;
    kvd_output folder;
    size_t bytes; /* size of the written weights */
} exporting;

static int load(exporting *x, kvd_err *err)
{
    const kvd_export_options *const cfg = x->cfg;
    if (!(x->checkpoint = kvd_checkpoint_open(cfg->model, err)) ||
        kvd_run_add_model(&x->run, cfg->model, err) ||
        kvd_method_paths_add_inputs(&cfg->files, &x->run, err))
        return -1;
    x->model = kvd_checkpoint_config(x->checkpoint);
    kvd_model_info_set(&x->info, x->model, cfg->model, x->run.inputs[0].hash,
                       kvd_checkpoint_dtype(x->checkpoint));
    return kvd_method_files_load(&x->files, &cfg->files, &x->info, cfg->model, err);
}

/* Without --method, selects the first compression method that decomposes the same matrices as the
 * --rates file, for example Q stacked on K. The --rates file says how many dimensions each head
 * keeps. */
static int resolve_method(exporting *x, kvd_err *err)
{
    kvd_export_options *const cfg = x->cfg;
    if (cfg->method_text)
        return 0;
    kvd_method_entry e;
    for (int i = 0; kvd_method_entry_at(i, &e); i++) {
        const kvd_dims_method *const m = e.dims;
        if (!m || m->one_p || m->pair[0] != x->files.rates[0].pair[0] ||
            m->pair[1] != x->files.rates[0].pair[1])
            continue;
        cfg->method_text = m->info.name;
        return kvd_method_parse(m->info.name, &cfg->method, err);
    }
    return kvd_fail(err, "'%s' is for %s and %s, which no method has", cfg->files.rates[0],
                    kvd_pair_name[x->files.rates[0].pair[0]],
                    kvd_pair_name[x->files.rates[0].pair[1]]);
}

/* Chooses one point (kept dimensions of all heads) of the --rates file: the point that --point
 * names, or the weakest compression that removes at least the fraction --overall-p of the
 * dimensions, or the only point. */
static int choose(const exporting *x, size_t *index, kvd_err *err)
{
    const kvd_export_options *const cfg = x->cfg;
    const kvd_rates *const r = &x->files.rates[0];
    size_t best = r->n_points;
    if (cfg->point_given) {
        *index = cfg->point;
        return cfg->point < r->n_points
                   ? 0
                   : kvd_fail(err, "--point %zu: '%s' has %zu points, 0 is the first", cfg->point,
                              cfg->files.rates[0], r->n_points);
    }
    if (isnan(cfg->overall_p)) {
        *index = 0;
        return r->n_points == 1
                   ? 0
                   : kvd_fail(err, "'%s' has %zu points: choose one with --point or --overall-p",
                              cfg->files.rates[0], r->n_points);
    }
    double largest = 0;
    for (size_t i = 0; i < r->n_points; i++) {
        largest = fmax(largest, r->overall_p[i]);
        if (r->overall_p[i] >= cfg->overall_p - 1e-12 &&
            (best == r->n_points || r->overall_p[i] < r->overall_p[best]))
            best = i;
    }
    *index = best;
    if (best == r->n_points)
        return kvd_fail(err, "--overall-p %g: '%s' goes up to %g", cfg->overall_p,
                        cfg->files.rates[0], largest);
    /* Warns if the removed fraction of dimensions exceeds --overall-p by more than 0.01. */
    if (r->overall_p[best] > cfg->overall_p + 0.01)
        fprintf(stderr, "%s: warning: '%s' has no point at --overall-p %g: %.4g is taken\n",
                program, cfg->files.rates[0], cfg->overall_p, r->overall_p[best]);
    return 0;
}

static int make_point(exporting *x, kvd_err *err)
{
    kvd_export_options *const cfg = x->cfg;
    kvd_method *const m = &cfg->method;
    if (resolve_method(x, err) || kvd_method_find_files(m, &x->files, err) ||
        kvd_method_warn_bases(m, program, err))
        return -1;
    x->note.index = -1;
    if (kvd_method_has_point(m))
        return kvd_point_of_keys(m, &x->point, err);
    size_t i;
    if (choose(x, &i, err))
        return -1;
    x->note.index = (long)i;
    return kvd_point_of_rates(m, i, &x->point, err);
}

/* Returns the largest absolute element of right * left - I; right is [m][d], or transposed
 * [d][m]. */
static double off_identity(size_t d, size_t m, const float *right, bool transposed,
                           const float *left)
{
    double worst = 0;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < m; j++) {
            double sum = 0;
            for (size_t k = 0; k < d; k++)
                sum += (double)right[transposed ? k * m + i : i * d + k] * (double)left[k * m + j];
            worst = fmax(worst, fabs(sum - (i == j)));
        }
    return worst;
}

/* Fails if the two matrices of a projection are not inverse to each other, which happens after
 * calibration with too few tokens. */
static int check_projectors(const kvd_dims *dims, kvd_err *err)
{
    const double limit = 1e-2;
    for (int i = 0; i < dims->n_layers * dims->n_kv_heads; i++) {
        const kvd_dims_head *const h = &dims->head[i];
        const size_t d = (size_t)dims->d_head;
        const double qk = h->a_q ? off_identity(d, (size_t)h->d_qk, h->a_k, true, h->a_q) : 0;
        const double v = h->a_v ? off_identity(d, (size_t)h->d_v, h->b_v, false, h->a_v) : 0;
        if (!(qk <= limit && v <= limit))
            return kvd_fail(
                err,
                "layer %d, KV head %d: the two matrices of pair %s are off the identity by %.3g: calibrate "
                "with more tokens",
                i / dims->n_kv_heads, i % dims->n_kv_heads, kvd_pair_name[dims->pair[qk <= limit]],
                qk <= limit ? v : qk);
    }
    return 0;
}

/* Decides which projections to fewer dimensions are multiplied into the model weights: those for Q
 * and K, for V, or for all three. */
static int resolve_folding(exporting *x, kvd_err *err)
{
    const kvd_dims *const all = &x->point.dims;
    const size_t n = (size_t)all->n_layers * (size_t)all->n_kv_heads;
    x->folded = *all;
    x->folded.head = malloc(n * sizeof *all->head);
    if (!x->folded.head)
        return kvd_no_memory(err, "projections", (unsigned long long)n * sizeof *all->head);
    memcpy(x->folded.head, all->head, n * sizeof *all->head);
    x->note.folds[0] = kvd_dims_cuts(all, 0) && kvd_folds_qk(x->model);
    x->note.folds[1] = kvd_dims_cuts(all, 1);
    if (!x->note.folds[0] && !x->note.folds[1])
        return kvd_fail(
            err, "nothing folds: method '%s' cuts Q and K alone, and %s comes after W_Q and W_K",
            x->cfg->method_text, x->model->positions == KVD_POSITIONS_ROPE ? "RoPE" : "a norm");
    for (size_t i = 0; !x->note.folds[0] && i < n; i++) {
        x->folded.head[i].a_q = x->folded.head[i].a_k = NULL;
        x->folded.head[i].d_qk = all->d_head;
    }
    return kvd_folded_list_make(&x->list, x->checkpoint, &x->folded, err);
}

/* Refuses an output folder that contains an input file, or that kvdim-export did not write. */
static int check_output(const kvd_export_options *cfg, kvd_err *err)
{
    const char *const out = cfg->common.output, *const input[] = {
                                                    cfg->model, cfg->files.spectrum[0],
                                                    cfg->files.rates[0], cfg->files.table};
    struct stat st;
    const bool there = !stat(out, &st);
    for (size_t i = 0; i < sizeof input / sizeof *input; i++) {
        const char *const in = input[i];
        if (in && (kvd_run_not_the_input(out, in, err) || kvd_output_folder_spares(out, in, err)))
            return -1;
    }
    if (there && S_ISDIR(st.st_mode) && !cfg->force)
        return kvd_fail(err, "cannot write '%s': it exists; --force replaces an earlier export",
                        out);
    if (there && S_ISDIR(st.st_mode) && !kvd_rates_note_found(out))
        return kvd_fail(err, "cannot replace '%s': it is not, or not only, an earlier export", out);
    return 0;
}

static int write_checkpoint(exporting *x, kvd_err *err)
{
    kvd_progress progress;
    kvd_checkpoint_out w = {.from = x->checkpoint,
                            .folded = &x->list,
                            .as_stored = !x->cfg->dtype_given,
                            .dtype = x->cfg->dtype,
                            .progress = &progress};
    if (kvd_checkpoint_out_bytes(&w, &x->bytes, err))
        return -1;
    kvd_progress_start(&progress, "export", "MB", (double)x->bytes * 1e-6, x->cfg->common.quiet);
    const int status = kvd_checkpoint_write(&w, &x->folder, err);
    kvd_progress_end(&progress);
    if (status)
        return -1;
    kvd_checkpoint *const again = kvd_checkpoint_open(x->folder.partial, err);
    kvd_checkpoint_close(again);
    return again ? 0 : -1;
}

static int write_folder(exporting *x, kvd_err *err)
{
    kvd_export_options *const cfg = x->cfg;
    if (kvd_output_folder_begin(&x->folder, cfg->common.output, cfg->force, err))
        return -1;
    x->note.form = cfg->rotations ? "rotations" : "checkpoint";
    x->note.model = &x->info;
    x->note.scale = x->model->score_scale > 0 ? x->model->score_scale : 1 / sqrt(x->model->d_head);
    x->note.softcap = x->model->score_softcap;
    x->note.point = &x->point;
    x->note.dtype = cfg->rotations     ? "f32"
                    : cfg->dtype_given ? kvd_dtype_name(cfg->dtype)
                                       : "as stored";
    x->note.run = &x->run;
    return kvd_status((cfg->rotations ? kvd_rotations_write(&x->point.dims, &x->folder, err)
                                      : write_checkpoint(x, err)) ||
                      kvd_rates_note_write(&x->note, &x->folder, err) ||
                      kvd_output_folder_commit(&x->folder, cfg->force, err));
}

/* Writes the value of --method with which kvdim-eval gives the same predictions as the exported
 * checkpoint. */
static void predicting_method(const exporting *x, char *text, size_t size)
{
    const bool left_whole = !x->note.folds[0] && kvd_dims_cuts(&x->point.dims, 0);
    snprintf(text, size, "%s%s", x->cfg->method_text, left_whole ? ",cut=v" : "");
}

static int print_json(const exporting *x, kvd_err *err)
{
    char method[300];
    predicting_method(x, method, sizeof method);
    json_t *const folded = json_array();
    for (int side = 0; side < 2; side++)
        if (x->note.folds[side])
            json_array_append_new(folded, json_string(side ? "v" : "qk"));
    json_t *const all =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:o, s:I, s:I, s:o}", "program", program,
                  "output", x->cfg->common.output, "form", x->note.form, "method",
                  kvd_method_name(&x->cfg->method), "rule", x->point.rule, "overall_p",
                  x->point.overall_p, "folded_p", kvd_rates_note_folded_p(&x->note), "folded",
                  folded, "tensors_folded", (json_int_t)x->list.n, "bytes", (json_int_t)x->bytes,
                  "predicted_by", x->cfg->rotations ? json_null() : json_string(method));
    return kvd_json_print(all, err);
}

static void print_summary(const exporting *x)
{
    const kvd_export_options *const cfg = x->cfg;
    const kvd_dims *const d = &x->point.dims;
    char method[300];
    printf("%s: %s of %s, method %s, rule %s, overall p %.6f\n", cfg->common.output,
           cfg->rotations ? "projections" : "checkpoint", x->info.name, cfg->method_text,
           x->point.rule, x->point.overall_p);
    if (cfg->rotations) {
        printf(
            "rotations.safetensors: %d layers, %d KV heads, d_head %d, float32; widths in rates.json\n",
            d->n_layers, d->n_kv_heads, d->d_head);
        return;
    }
    predicting_method(x, method, sizeof method);
    printf(
        "folded: %s; p of what is folded %.6f; %zu of the tensors changed, weights %s, %.1f MB\n",
        x->note.folds[0] && x->note.folds[1] ? "Q-K and V"
        : x->note.folds[1]                   ? "V"
                                             : "Q-K",
        kvd_rates_note_folded_p(&x->note), x->list.n, x->note.dtype, (double)x->bytes * 1e-6);
    if (!x->note.folds[0] && kvd_dims_cuts(d, 0))
        printf("Q and K stay whole: %s is between W_Q, W_K and the scores\n",
               x->model->positions == KVD_POSITIONS_ROPE ? "RoPE" : "a norm");
    const char *const command[] = {"kvdim-eval", cfg->model, "--spectrum", cfg->files.spectrum[0],
                                   "--method",   method,     "--rates",    cfg->files.rates[0]};
    kvd_err ignored;
    char *const line = kvd_run_quote(cfg->files.rates[0] ? 8 : 6, command, &ignored);
    printf("predicted by: %s\n", line ? line : "kvdim-eval");
    free(line);
}

static int work(exporting *x, kvd_err *err)
{
    kvd_export_options *const cfg = x->cfg;
    if (kvd_device_cpu_only(&cfg->common, err) || check_output(cfg, err) || load(x, err))
        return -1;
    if (!cfg->rotations && !kvd_checkpoint_shards(x->checkpoint))
        return kvd_fail(
            err,
            "'%s' is not in safetensors, which a checkpoint is written from; --rotations-only takes it",
            cfg->model);
    if (make_point(x, err) || check_projectors(&x->point.dims, err) ||
        (!cfg->rotations && resolve_folding(x, err)) || write_folder(x, err))
        return -1;
    if (cfg->common.json)
        return print_json(x, err);
    if (!cfg->common.quiet)
        print_summary(x);
    return 0;
}

static void release(exporting *x)
{
    kvd_output_folder_release(&x->folder);
    kvd_folded_list_release(&x->list);
    free(x->folded.head);
    kvd_point_release(&x->point);
    kvd_method_files_release(&x->files);
    kvd_checkpoint_close(x->checkpoint);
    kvd_run_release(&x->run);
}

int main(int argc, char **argv)
{
    static kvd_export_options cfg;
    static exporting x;
    kvd_err err = {""};
    kvd_export_parse(argc, argv, &cfg);
    x.cfg = &cfg;
    int status = kvd_run_start(&x.run, program, argc, argv, &cfg.common, &err);
    if (!status)
        status = work(&x, &err);
    release(&x);
    kvd_export_options_release(&cfg);
    return kvd_run_exit(program, status, &err);
}
