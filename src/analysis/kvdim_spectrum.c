/* kvdim-spectrum: computes singular values and rotations (orthogonal matrices) of every attention
 * head. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/pairs.h"
#include "analysis/reduce.h"
#include "analysis/spectrum_options.h"
#include "common/clock.h"
#include "common/device.h"
#include "common/progress.h"
#include "common/run.h"

#ifdef KVD_CUDA
#include "analysis/cuda/eigen.h"
#include "common/cuda/libraries.h"
#endif

static const char program[] = "kvdim-spectrum";

typedef kvd_spectrum_options config;

static int decompose(const config *cfg, const kvd_moments *m, const bool *wanted, int first,
                     kvd_spectrum *s, kvd_err *err)
{
    const double begin = kvd_clock_s();
    int status;
#ifdef KVD_CUDA
    if (cfg->common.device == KVD_DEVICE_CUDA)
        status = kvd_gpu_decompose_moments(m, wanted, cfg->before_rope, first, s, err);
    else
#endif
        status = kvd_decompose_moments(m, wanted, cfg->before_rope, first, s, err);
    s->calibration.seconds_decompose += kvd_clock_s() - begin;
    return status;
}

/* Plan of a run. by_gram: matrices to decompose through X^T X; any: true if there is such a matrix;
 * need: tensors to read from the input. */
typedef struct {
    bool by_gram[KVD_N_PAIRS], any, need[KVD_N_X];
} plan;

static plan make_plan(const config *cfg)
{
    plan p = {.any = false};
    for (int i = 0; i < KVD_N_PAIRS; i++) {
        p.by_gram[i] =
            cfg->wanted[i] && (cfg->method == KVD_BY_GRAM || kvd_pair_balanced((kvd_pair)i));
        p.any = p.any || p.by_gram[i];
    }
    kvd_pair_tensors(cfg->wanted, cfg->before_rope, p.need);
    return p;
}

/* Q, K and V vectors of one layer. They are read from the input files or, with k-means, are
 * centroids of the vectors in all input files. */
typedef struct {
    const kvd_source *source;
    size_t n;
    kvd_source centroids;
    kvd_layer_rows rows;
} layer_sources;

static int open_layer(const config *cfg, const kvd_sources *in, const plan *p, int layer,
                      layer_sources *out, kvd_reduced *sum, kvd_err *err)
{
    *out = (layer_sources){.source = in->source, .n = in->n_sources};
    if (!cfg->reduction.centroids)
        return 0;
    out->centroids = (kvd_source){
        .dump = in->source[0].dump, .n_tokens = cfg->reduction.centroids, .rows = &out->rows};
    out->source = &out->centroids;
    out->n = 1;
    return kvd_reduce_layer(in->source, in->n_sources, p->need, layer, &cfg->reduction, &out->rows,
                            sum, err);
}

static int sum_layer(const config *cfg, const layer_sources *from, const plan *p, int layer,
                     kvd_moments *m, kvd_spectrum *s, kvd_err *err)
{
    const double begin = kvd_clock_s();
    for (size_t i = 0; i < from->n; i++)
        if (kvd_pair_moments(&from->source[i], p->by_gram, layer, cfg->before_rope, i == 0, m, err))
            return -1;
    s->calibration.seconds_rows += kvd_clock_s() - begin;
    return 0;
}

/* Decomposes a layer's matrices X (such as a head's keys) without forming X^T X. With --method
 * gram, does so only for heads where rounding in X^T X would hide small singular values. */
static int rows_of_layer(const config *cfg, const layer_sources *from, const plan *p, int layer,
                         kvd_spectrum *s, kvd_err *err)
{
    const double begin = kvd_clock_s();
    int status = 0;
    for (int i = 0; !status && i < KVD_N_PAIRS; i++)
        if (p->by_gram[i] && !kvd_pair_balanced((kvd_pair)i))
            status = kvd_decompose_blurred(from->source, from->n, (kvd_pair)i, cfg->before_rope,
                                           layer, s, err);
        else if (cfg->wanted[i] && !p->by_gram[i])
            status =
                kvd_decompose_rows(from->source, from->n, (kvd_pair)i, cfg->method == KVD_BY_TSQR,
                                   cfg->before_rope, layer, s, err);
    s->calibration.seconds_decompose += kvd_clock_s() - begin;
    return status;
}

static kvd_moments layer_view(const kvd_moments *m, int layer)
{
    kvd_moments one = *m;
    one.n_layers = 1;
    for (int g = 0; g < KVD_N_G; g++)
        if (m->gram[g])
            one.gram[g] = kvd_moments_at(m, (kvd_g)g, layer, 0);
    return one;
}

/* Decomposes Q, K and V of layers first .. first + n - 1 into singular values and right singular
 * vectors (rotations). With k-means (--centroids), n must be 1. */
static int some_layers(const config *cfg, const kvd_sources *in, const plan *p, int first, int n,
                       kvd_progress *progress, kvd_reduced *sum, kvd_spectrum *s, kvd_err *err)
{
    kvd_moments m = in->sum;
    layer_sources from = {0};
    int status = 0;
    m.n_layers = n;
    m.has_pre = cfg->before_rope;
    if (p->any && kvd_moments_alloc(&m, err))
        status = -1;
    for (int l = 0; !status && l < n; l++) {
        kvd_moments one = p->any ? layer_view(&m, l) : m;
        kvd_layer_rows_release(&from.rows);
        status = kvd_interrupted() ? kvd_fail_interrupted(err)
                                   : open_layer(cfg, in, p, first + l, &from, sum, err);
        if (!status && p->any)
            status = sum_layer(cfg, &from, p, first + l, &one, s, err);
        kvd_progress_step(progress, first + l + 1);
    }
    if (!status && p->any)
        status = decompose(cfg, &m, p->by_gram, first, s, err);
    for (int l = 0; !status && l < n; l++)
        status = rows_of_layer(cfg, &from, p, first + l, s, err);
    kvd_layer_rows_release(&from.rows);
    if (p->any)
        kvd_moments_release(&m);
    return status;
}

static int spectrum_of_dumps(const config *cfg, const kvd_sources *in, kvd_spectrum *s,
                             kvd_err *err)
{
    const plan p = make_plan(cfg);
    /* A GPU decomposes the matrices of all layers at once, for speed. The CPU decomposes one layer
     * at a time, to save memory. */
    const int at_once = p.any && cfg->common.device == KVD_DEVICE_CUDA && !cfg->reduction.centroids
                            ? s->n_layers
                            : 1;
    kvd_reduced sum = {0};
    kvd_progress progress;
    kvd_progress_start(&progress, "spectrum", "layers", s->n_layers, cfg->common.quiet);
    int status = 0;
    for (int l = 0; !status && l < s->n_layers; l += at_once)
        status = some_layers(cfg, in, &p, l, at_once, &progress, &sum, s, err);
    kvd_progress_end(&progress);
    s->calibration.seconds_rows += sum.read_s;
    s->calibration.seconds_kmeans = sum.kmeans_s;
    s->calibration.kmeans_iterations = sum.n ? (double)sum.n_iterations / (double)sum.n : 0;
    s->calibration.kmeans_residual = sum.energy > 0 ? sum.residual / sum.energy : 0;
    return status;
}

/* Returns the number of rows of a decomposed matrix; for example, KVD_PAIR_QK is Q stacked on K. If
 * k-means replaced tokens by unweighted centroids, counts centroids instead of tokens. */
static size_t rows_of_pair(const config *cfg, const kvd_spectrum *s, kvd_pair pair)
{
    const kvd_reduction *r = &cfg->reduction;
    return kvd_pair_rows(&s->model, pair, s->pairing,
                         r->centroids && !r->weighted ? r->centroids : s->n_tokens);
}

static int compute(const config *cfg, const kvd_sources *in, const kvd_pruned *pruned,
                   kvd_spectrum *s, kvd_err *err)
{
    const kvd_moments *sum = &in->sum;
    s->model = sum->model;
    s->pairing = cfg->pairing;
    s->n_tokens = sum->n_tokens - pruned->n_tokens;
    s->seq_len = sum->seq_len;
    s->first_layer = sum->first_layer;
    s->n_layers = sum->n_layers;
    s->calibration.prune = cfg->reduction.prune;
    s->calibration.sequences_dropped = pruned->n_sequences;
    s->calibration.tokens_dropped = pruned->n_tokens;
    s->calibration.tokens_cut = in->tokens_cut;
    s->calibration.centroids = cfg->reduction.centroids;
    s->calibration.weighted = cfg->reduction.weighted;
    snprintf(s->label, sizeof s->label, "%s", cfg->label ? cfg->label : sum->label);
    memcpy(s->corpus_hash, sum->corpus_hash, sizeof s->corpus_hash);
    snprintf(s->method, sizeof s->method, "%s", kvd_decomposition_name[cfg->method]);
    snprintf(s->rope, sizeof s->rope, "%s", kvd_model_info_rope(&s->model, cfg->before_rope));
    for (int p = 0; p < KVD_N_PAIRS; p++) {
        if (!cfg->wanted[p])
            continue;
        if (kvd_spectrum_alloc(s, (kvd_pair)p, err))
            return -1;
        s->pair[p].n_rows = rows_of_pair(cfg, s, (kvd_pair)p);
    }
    return in->moments ? decompose(cfg, sum, cfg->wanted, 0, s, err)
                       : spectrum_of_dumps(cfg, in, s, err);
}

/* Returns true if a GPU is expected to decompose the matrices faster than the CPU. Assumes that a
 * GPU starts in 0.5 s, and that the CPU takes 2.6e-9 d^3 s for each d x d matrix. */
static bool device_pays(const config *cfg, const kvd_moments *sum)
{
    const double d = sum->model.d_head;
    double heads = 0;
    for (int p = 0; p < KVD_N_PAIRS; p++)
        if (cfg->wanted[p] && cfg->method == KVD_BY_GRAM && !kvd_pair_balanced((kvd_pair)p))
            heads += sum->n_layers * kvd_pair_heads(&sum->model, (kvd_pair)p, cfg->pairing);
    return 2.6e-9 * heads * d * d * d / cfg->common.threads > 0.5;
}

/* Replaces --device auto by cpu or cuda. Chooses a GPU only if cuSOLVER is installed. */
static int resolve_device(config *cfg, const kvd_moments *sum, char *gpu, size_t size, kvd_err *err)
{
    const bool asked = cfg->common.device == KVD_DEVICE_CUDA;
    gpu[0] = '\0';
    if (!asked && !device_pays(cfg, sum))
        cfg->common.device = KVD_DEVICE_CPU;
    if (kvd_device_resolve(&cfg->common, gpu, size, err))
        return -1;
#ifdef KVD_CUDA
    if (cfg->common.device == KVD_DEVICE_CUDA && !kvd_cusolver_load(err)) {
        if (asked)
            return kvd_in(err, "--device cuda");
        if (!cfg->common.quiet)
            fprintf(stderr, "%s: note: %s; decomposing on the CPU\n", program, err->msg);
        cfg->common.device = KVD_DEVICE_CPU;
        gpu[0] = '\0';
    }
#endif
    return 0;
}

static int record(const config *cfg, kvd_run *run, kvd_err *err)
{
    char pairs[64] = "";
    for (int p = 0; p < KVD_N_PAIRS; p++)
        if (cfg->wanted[p])
            snprintf(pairs + strlen(pairs), sizeof pairs - strlen(pairs), "%s%s",
                     pairs[0] ? "," : "", kvd_pair_name[p]);
    const kvd_reduction *r = &cfg->reduction;
    return kvd_status(
        kvd_run_parameter(run, "pair", err, "%s", pairs) ||
        kvd_run_parameter(run, "pairing", err, "%s", kvd_pairing_name[cfg->pairing]) ||
        kvd_run_parameter(run, "method", err, "%s", kvd_decomposition_name[cfg->method]) ||
        kvd_run_parameter(run, "rope", err, "%s", cfg->before_rope ? "before" : "after") ||
        kvd_run_parameter(run, "tokens", err, "%zu", cfg->tokens) ||
        kvd_run_parameter(run, "label", err, "%s", cfg->label ? cfg->label : "") ||
        kvd_run_parameter(run, "prune", err, "%.12g", r->prune) ||
        kvd_run_parameter(run, "centroids", err, "%zu", r->centroids) ||
        kvd_run_parameter(run, "weighted", err, "%s", r->weighted ? "yes" : "no") ||
        kvd_run_parameter(run, "device", err, "%s",
                          cfg->common.device == KVD_DEVICE_CUDA ? "cuda" : "cpu"));
}

static int open_inputs(const config *cfg, kvd_run *run, kvd_sources *in, kvd_pruned *pruned,
                       kvd_err *err)
{
    const kvd_reduction *r = &cfg->reduction;
    if (kvd_run_add_inputs(run, cfg->input, cfg->n_inputs, err) ||
        kvd_sources_open(in, cfg->input, cfg->n_inputs, cfg->tokens, err))
        return -1;
    if (in->moments && cfg->method_given && cfg->method != KVD_BY_GRAM)
        return kvd_fail(
            err, "--method %s needs rows; '%s' holds moments, of which only gram is possible",
            kvd_decomposition_name[cfg->method], cfg->input[0]);
    if (in->moments && (r->prune > 0 || r->centroids))
        return kvd_fail(err, "--%s needs rows; '%s' holds moments",
                        r->centroids ? "centroids" : "prune", cfg->input[0]);
    return r->prune > 0 ? kvd_prune(in->source, in->n_sources, r->prune, r->seed, pruned, err) : 0;
}

static int work(config *cfg, kvd_run *run, kvd_err *err)
{
    kvd_sources in = {0};
    kvd_pruned pruned = {0};
    kvd_spectrum s = {0};
    kvd_h5 out = {.id = H5I_INVALID_HID};
    char gpu[256];
    int status = -1;
    if (open_inputs(cfg, run, &in, &pruned, err) ||
        resolve_device(cfg, &in.sum, gpu, sizeof gpu, err) || record(cfg, run, err))
        goto done;
    for (int i = 0; i < run->n_inputs; i++)
        s.calibration.seconds_collect += run->inputs[i].seconds;
    /* Creates the output before computing, so that a missing folder is found at once. */
    if (kvd_h5_create(&out, cfg->common.output, &kvd_schema_spectrum, run, err) ||
        (gpu[0] && kvd_h5_put_text(&out, "/provenance", "gpu", gpu, err)) ||
        compute(cfg, &in, &pruned, &s, err))
        goto done;
    if (cfg->no_bases)
        kvd_spectrum_drop_bases(&s);
    if (kvd_spectrum_write(&out, &s, err) || kvd_h5_finish(&out, err))
        goto done;
    status = kvd_spectrum_print(program, cfg, in.moments, gpu, &s, err);
done:
    kvd_h5_close(&out, false);
    kvd_spectrum_release(&s);
    kvd_pruned_release(&pruned);
    kvd_sources_close(&in);
    return status;
}

int main(int argc, char **argv)
{
    static config cfg;
    kvd_run run = {0};
    kvd_err err = {""};
    kvd_spectrum_parse(argc, argv, &cfg);
    int status = kvd_run_start(&run, program, argc, argv, &cfg.common, &err);
    if (!status)
        status = work(&cfg, &run, &err);
    kvd_run_release(&run);
    return kvd_run_exit(program, status, &err);
}
