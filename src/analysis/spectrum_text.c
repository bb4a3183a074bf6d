#include "analysis/spectrum_options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "analysis/decompose.h"
#include "common/json.h"

/*
 * Returns the number of singular values below 1e-5 of the largest, where the error of a Gram matrix
 * passes 1e-6.
 */
static size_t count_blurred(const kvd_spectrum *s, kvd_pair pair)
{
    const size_t d = (size_t)s->model.d_head,
                 heads = (size_t)s->n_layers * (size_t)s->pair[pair].n_h;
    size_t n = 0;
    for (size_t i = 0; i < heads; i++)
        for (size_t j = 1; j < d; j++)
            n += s->pair[pair].sigma[i * d + j] < 1e-5 * s->pair[pair].sigma[i * d];
    return n;
}

static void warn(const char *program, const kvd_spectrum_options *cfg, bool from_moments,
                 const kvd_spectrum *s, kvd_pair pair)
{
    const size_t rows = s->pair[pair].n_rows, d = (size_t)s->model.d_head;
    if (!kvd_pair_balanced(pair) && rows < d) {
        fprintf(
            stderr,
            "%s: warning: pair '%s' has %zu rows for %zu dimensions: the last %zu singular values are 0\n",
            program, kvd_pair_name[pair], rows, d, d - rows);
        return;
    }
    if (s->pair[pair].by_tsqr)
        fprintf(
            stderr,
            "%s: note: pair '%s': %zu heads with singular values below %g of their largest were decomposed "
            "by tsqr, which resolves them\n",
            program, kvd_pair_name[pair], s->pair[pair].by_tsqr, KVD_GRAM_LIMIT);
    const size_t blurred = from_moments && cfg->method == KVD_BY_GRAM && !kvd_pair_balanced(pair)
                               ? count_blurred(s, pair)
                               : 0;
    if (blurred)
        fprintf(
            stderr,
            "%s: warning: pair '%s': %zu singular values are below 1e-5 of their head's largest, where "
            "gram is "
            "good to less than 1e-6; --method tsqr on activations resolves them\n",
            program, kvd_pair_name[pair], blurred);
}

/* Returns a JSON number, or null for NaN: the CV of singular values that are all 0. */
static json_t *real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static int print_json(const char *program, const kvd_spectrum_options *cfg, const char *gpu,
                      const kvd_spectrum *s, kvd_err *err)
{
    json_t *pairs = json_object();
    for (int p = 0; p < KVD_N_PAIRS; p++) {
        kvd_pair_summary x;
        if (!cfg->wanted[p])
            continue;
        if (kvd_spectrum_summarise(s, (kvd_pair)p, &x, err)) {
            json_decref(pairs);
            return -1;
        }
        json_object_set_new(pairs, kvd_pair_name[p],
                            json_pack("{s:I, s:I, s:s, s:o, s:o, s:o, s:o, s:o}", "heads",
                                      (json_int_t)x.heads, "rows", (json_int_t)x.n_rows, "device",
                                      s->pair[p].on_gpu ? "cuda" : "cpu", "mean_max_sigma",
                                      real(x.mean_max_sigma), "cv_max_sigma", real(x.cv_max_sigma),
                                      "effective_rank", real(x.effective_rank), "rank90",
                                      real(x.rank90), "rank99", real(x.rank99)));
    }
    const kvd_calibration *c = &s->calibration;
    json_t *how = json_pack(
        "{s:f, s:I, s:I, s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:f}", "prune", c->prune,
        "sequences_dropped", (json_int_t)c->sequences_dropped, "tokens_dropped",
        (json_int_t)c->tokens_dropped, "centroids", (json_int_t)c->centroids, "weighted",
        (int)c->weighted, "kmeans_iterations", c->kmeans_iterations, "kmeans_residual",
        c->kmeans_residual, "seconds_collect", c->seconds_collect, "seconds_rows", c->seconds_rows,
        "seconds_kmeans", c->seconds_kmeans, "seconds_decompose", c->seconds_decompose);
    json_t *all = json_pack(
        "{s:s, s:s, s:b, s:s, s:s, s:s, s:s, s:s, s:I, s:i, s:s, s:o, s:o}", "program", program,
        "model", s->model.name, "random_weights", (int)kvd_model_info_random(&s->model), "output",
        cfg->common.output, "label", s->label, "method", s->method, "rope", s->rope, "pairing",
        kvd_pairing_name[s->pairing], "n_tokens", (json_int_t)s->n_tokens, "d_head",
        s->model.d_head, "gpu", gpu[0] ? gpu : "none", "calibration", how, "pairs", pairs);
    return kvd_json_print(all, err);
}

/*
 * Prints the device that computed the eigenvalues, the share of the rows that was left out, and the
 * times.
 */
static void print_how(const char *gpu, const kvd_spectrum_options *cfg, const kvd_spectrum *s)
{
    const kvd_calibration *c = &s->calibration;
    char there[64] = "", here[64] = "";
    for (int p = 0; p < KVD_N_PAIRS; p++) {
        char *list = s->pair[p].on_gpu ? there : here;
        if (cfg->wanted[p])
            snprintf(list + strlen(list), sizeof there - strlen(list), "%s%s", list[0] ? "," : "",
                     kvd_pair_name[p]);
    }
    if (gpu[0])
        printf("eigenvalues on %s: %s; on the CPU: %s, and all sums of products\n", gpu,
               there[0] ? there : "none", here[0] ? here : "none");
    if (c->prune > 0)
        printf("pruned: %zu sequences of %zu tokens left out\n", c->sequences_dropped,
               c->tokens_dropped);
    if (c->centroids)
        printf(
            "K-means: %zu %scentroids for every head of Q, K and V, %.1f iterations, %.3g %% of the "
            "energy of the rows lost\n",
            c->centroids, c->weighted ? "weighted " : "", c->kmeans_iterations,
            100 * c->kmeans_residual);
    printf("seconds: rows %.3g, K-means %.3g, decomposition %.3g; the inputs took %.3g\n",
           c->seconds_rows, c->seconds_kmeans, c->seconds_decompose, c->seconds_collect);
}

static int print_table(const kvd_spectrum_options *cfg, const char *gpu, const kvd_spectrum *s,
                       kvd_err *err)
{
    printf("%s: %zu tokens of '%s', %s, %d layers of d_head %d, %s RoPE, %s\n", cfg->common.output,
           s->n_tokens, s->label, s->model.name, s->n_layers, s->model.d_head,
           strcmp(s->rope, "none") ? s->rope : "without", kvd_pairing_name[s->pairing]);
    if (kvd_model_info_random(&s->model))
        printf("%s: %s\n", s->model.name, kvd_random_weights_note);
    printf("%-5s %-6s %6s %10s %12s %8s %9s %9s %9s\n", "pair", "method", "heads", "rows",
           "mean sigma_0", "CV", "eff.rank", "dims 90%", "dims 99%");
    for (int p = 0; p < KVD_N_PAIRS; p++) {
        kvd_pair_summary x;
        if (!cfg->wanted[p])
            continue;
        if (kvd_spectrum_summarise(s, (kvd_pair)p, &x, err))
            return -1;
        printf("%-5s %-6s %6zu %10zu %12.5g %7.2f%% %9.2f %9.2f %9.2f\n", kvd_pair_name[p],
               kvd_pair_balanced((kvd_pair)p) ? "gram" : s->method, x.heads, x.n_rows,
               x.mean_max_sigma, 100 * x.cv_max_sigma, x.effective_rank, x.rank90, x.rank99);
    }
    print_how(gpu, cfg, s);
    printf(
        "CV: sample standard deviation / mean of the largest singular value over heads; effective rank: "
        "exp of the "
        "entropy of sigma^2; dims 90%%, 99%%: leading dimensions that hold this share of sum sigma^2\n");
    return 0;
}

int kvd_spectrum_print(const char *program, const kvd_spectrum_options *cfg, bool from_moments,
                       const char *gpu, const kvd_spectrum *s, kvd_err *err)
{
    for (int p = 0; p < KVD_N_PAIRS && !cfg->common.quiet; p++)
        if (cfg->wanted[p])
            warn(program, cfg, from_moments, s, (kvd_pair)p);
    if (cfg->common.json)
        return print_json(program, cfg, gpu, s, err);
    return cfg->common.quiet ? 0 : print_table(cfg, gpu, s, err);
}
