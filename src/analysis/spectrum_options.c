#include "analysis/spectrum_options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "analysis/pairs.h"
#include "common/json.h"
#include "model/text/text_options.h"

const char *const kvd_decomposition_name[4] = {"svd", "tsqr", "gram", NULL};
/* values of --rope and --pairing */
static const char *const ropes[] = {"after", "before", NULL}, *const pairings[] = {
                                                                  "shared", "per-query", NULL};

static int check_usage(void *config, kvd_err *err)
{
    kvd_spectrum_options *const cfg = config;
    for (int p = 0; p < KVD_N_PAIRS; p++)
        if (cfg->wanted[p] && kvd_pair_fisher((kvd_pair)p))
            return kvd_fail(err, "--pair: '%s' needs gradients, which kvdim-sensitivity computes",
                            kvd_pair_name[p]);
    for (int p = 0; p < KVD_N_PAIRS; p++)
        if (cfg->wanted[p] && kvd_pair_balanced((kvd_pair)p) && cfg->pairing == KVD_PER_QUERY)
            return kvd_fail(err,
                            "--pair: '%s' is defined per KV head, not with --pairing per-query",
                            kvd_pair_name[p]);
    if (cfg->before_rope && cfg->wanted[KVD_PAIR_BQK])
        return kvd_fail(err, "--pair: 'bqk' is defined after RoPE, not with --rope before");
    cfg->reduction.seed = cfg->common.seed;
    return 0;
}

#define T kvd_spectrum_options

static const kvd_option options[] = {
    {.help = "Input"},
    {"IN.h5", .positional = true, .type = KVD_OPT_TEXTS, KVD_INTO_LIST(T, input, n_inputs),
     .help = "Recorded Q, K and V, or second moments, of one model (kvdim-collect). Several files "
             "count as one set of texts"},
    KVD_OPTION_TOKENS(
        T, "all",
        "Use only the first N tokens of files of recorded Q, K and V, in the order given"),
    KVD_OPTION_LABEL(T, "labels of the inputs"),

    {.help = "Decomposition"},
    {"pair", .type = KVD_OPT_WORDS, .arg = "LIST", .words = kvd_pair_name, KVD_INTO(T, wanted),
     .initial = "qk,vw",
     .help =
         "Matrices to decompose, as docs/notation.md names them: qk is Q and K after RoPE, vw is V "
         "and W_O. kvdim-sensitivity computes fqk and fvw"},
    {"pairing", .type = KVD_OPT_WORD, .words = pairings, KVD_INTO(T, pairing), .initial = "shared",
     .help =
         "shared: one rotation per KV head, from K and all query heads that read it. per-query: "
         "one rotation per query head"},
    {"rope", .type = KVD_OPT_WORD, .words = ropes, KVD_INTO(T, before_rope), .initial = "after",
     .help = "Use Q and K after RoPE, or before it"},
    {"method", .type = KVD_OPT_WORD, .words = kvd_decomposition_name, KVD_INTO(T, method),
     KVD_GIVEN(T, method_given), .initial = "gram",
     .help =
         "gram: eigenvalues of X^T X, in one pass and constant memory. It is inaccurate for "
         "singular values below 1.25e-4 of the largest; heads with such values are computed again "
         "by tsqr if IN.h5 holds Q, K and V. tsqr: streaming QR. svd: LAPACK on all tokens of a "
         "head. Second moments allow only gram. A GPU computes only the eigenvalues of gram, "
         "except for bqk and bvw: always with --device cuda, and with auto if the CPU would take "
         "half a second"},

    {.help = "Calibration on fewer tokens, as in ZDC (needs recorded Q, K and V)"},
    {"prune", .type = KVD_OPT_NUMBER, .arg = "SHARE", KVD_INTO(T, reduction.prune), .high = 1,
     .below_high = true, .initial = "0",
     .help =
         "Leave out this fraction of the sequences of every file, chosen at random with --seed; "
         "ZDC leaves out 0.5"},
    {"centroids", .type = KVD_OPT_WHOLE, .arg = "K", KVD_INTO(T, reduction.centroids), .low = 1,
     .high = UINT32_MAX, .otherwise = "no K-means",
     .help =
         "Replace the token vectors of every head of Q, K and V by K centroids of K-means, started "
         "with --seed; ZDC takes 1000000"},
    {"weighted", .type = KVD_OPT_FLAG, KVD_INTO(T, reduction.weighted), .requires = "centroids",
     .help =
         "Multiply each centroid by the square root of its number of tokens; the paper does not"},

    {.help = "Output"},
    {"no-bases", .type = KVD_OPT_FLAG, KVD_INTO(T, no_bases),
     .help = "Write the singular values without the rotations. Only kvdim-report can use the file, "
             "which is 128 times smaller with heads of 128 dimensions"},
    KVD_OPTIONS_COMMON(T, "OUT.h5", "Write the result to OUT.h5, whole or not at all"),
    {0}};

static const kvd_program command_line = {
    .name = "kvdim-spectrum",
    .summary =
        "Compute singular values and rotations of every head from recorded Q, K and V or from "
        "their second moments.",
    .usage = {"IN.h5... -o OUT.h5 [OPTION...]"},
    .any_of = {"IN.h5", "output"},
    .examples = {"kvdim-spectrum results/wiki.moments.h5 --pair qk,vw,bqk,bvw -o "
                 "results/wiki.spectrum.h5"},
    .options = options,
    .check = check_usage};

void kvd_spectrum_parse(int argc, char **argv, kvd_spectrum_options *cfg)
{
    kvd_options_parse(&command_line, argc, argv, cfg);
}

void kvd_sources_close(kvd_sources *in)
{
    kvd_moments_release(&in->sum);
    for (size_t i = 0; i < in->n_dumps; i++)
        kvd_activations_close(&in->dump[i]);
    free(in->dump);
    free(in->source);
    memset(in, 0, sizeof *in);
}

static int one_kind(const char *const *path, size_t n, bool *moments, kvd_err *err)
{
    char first[64], name[64];
    for (size_t i = 0; i < n; i++) {
        if (kvd_h5_peek_schema(path[i], name, sizeof name, err))
            return -1;
        if (strcmp(name, "moments") && strcmp(name, "activations"))
            return kvd_fail(err,
                            "'%s' holds kvdim/%s, kvdim/activations or kvdim/moments is wanted",
                            path[i], name);
        if (i == 0)
            memcpy(first, name, sizeof first);
        else if (strcmp(first, name))
            return kvd_fail(err, "'%s' holds %s, '%s' %s: give one kind", path[0], first, path[i],
                            name);
    }
    *moments = !strcmp(first, "moments");
    return 0;
}

/* Fails if two paths name one file, because HDF5 must not open a file twice. */
static int distinct(const char *const *path, size_t n, kvd_err *err)
{
    struct stat *s = calloc(n, sizeof *s);
    int status = 0;
    if (!s)
        return kvd_no_memory(err, "the list of inputs", n * sizeof *s);
    for (size_t i = 0; !status && i < n; i++) {
        if (stat(path[i], &s[i]))
            status = kvd_fail_errno(err, "cannot open '%s'", path[i]);
        for (size_t j = 0; !status && j < i; j++)
            if (s[i].st_dev == s[j].st_dev && s[i].st_ino == s[j].st_ino)
                status = kvd_fail(err, "'%s' and '%s' hold the same texts: they are one file",
                                  path[j], path[i]);
    }
    free(s);
    return status;
}

static int check_new(const char *const *path, char (*hashes)[KVD_CORPUS_HASH_TEXT], size_t i,
                     const char *hash, kvd_err *err)
{
    snprintf(hashes[i], sizeof hashes[i], "%s", hash);
    for (size_t j = 0; j < i; j++)
        if (hash[0] && kvd_corpus_hash_same(hash, hashes[j]))
            return kvd_fail(err, "'%s' and '%s' hold the same texts (corpus hash %s)", path[j],
                            path[i], hash);
    return 0;
}

static int load_moments(kvd_sources *in, const char *const *path, size_t n, size_t tokens,
                        char (*hashes)[KVD_CORPUS_HASH_TEXT], kvd_err *err)
{
    for (size_t i = 0; i < n; i++) {
        kvd_moments one = {0}, *to = i ? &one : &in->sum;
        if (kvd_moments_load(to, path[i], err))
            return -1;
        int status = check_new(path, hashes, i, to->corpus_hash, err);
        if (!status && i)
            status = kvd_moments_add(&in->sum, path[0], &one, path[i], err);
        if (i)
            kvd_moments_release(&one);
        if (status)
            return -1;
    }
    if (tokens && tokens != in->sum.n_tokens)
        return kvd_fail(err, "--tokens %zu: the moments are sums over %zu tokens and cannot be cut",
                        tokens, in->sum.n_tokens);
    return 0;
}

static int open_dumps(kvd_sources *in, const char *const *path, size_t n, size_t tokens,
                      char (*hashes)[KVD_CORPUS_HASH_TEXT], kvd_err *err)
{
    size_t left = tokens ? tokens : SIZE_MAX;
    in->dump = calloc(n, sizeof *in->dump);
    in->source = calloc(n, sizeof *in->source);
    if (!in->dump || !in->source)
        return kvd_no_memory(err, "the list of dumps", n * (sizeof *in->dump + sizeof *in->source));
    for (size_t i = 0; i < n; i++) {
        kvd_activations *a = &in->dump[i];
        if (kvd_activations_open(a, path[i], err))
            return -1;
        in->n_dumps = i + 1;
        if (check_new(path, hashes, i, a->corpus_hash, err))
            return -1;
        const size_t taken = a->n_tokens < left ? a->n_tokens : left;
        kvd_moments one = {.model = a->model,
                           .n_tokens = taken,
                           .n_sequences = a->n_sequences,
                           .seq_len = a->seq_len,
                           .first_layer = a->first_layer,
                           .n_layers = a->n_layers};
        memcpy(one.label, a->label, sizeof one.label);
        memcpy(one.corpus_hash, a->corpus_hash, sizeof one.corpus_hash);
        if (i == 0)
            in->sum = one;
        else if (taken && kvd_moments_add(&in->sum, path[0], &one, path[i], err))
            return -1;
        if (taken)
            in->source[in->n_sources++] = (kvd_source){.dump = a, .n_tokens = taken};
        in->tokens_cut += a->n_tokens - taken;
        left -= taken;
    }
    if (tokens && left)
        return kvd_fail(err, "--tokens %zu: the %s %zu tokens", tokens,
                        n > 1 ? "dumps together have" : "dump has", in->sum.n_tokens);
    return 0;
}

int kvd_sources_open(kvd_sources *in, const char *const *path, size_t n, size_t tokens,
                     kvd_err *err)
{
    memset(in, 0, sizeof *in);
    char(*hashes)[KVD_CORPUS_HASH_TEXT] = calloc(n, sizeof *hashes);
    if (!hashes)
        return kvd_no_memory(err, "the list of inputs", n * sizeof *hashes);
    int status = kvd_status(distinct(path, n, err) || one_kind(path, n, &in->moments, err));
    if (!status)
        status = in->moments ? load_moments(in, path, n, tokens, hashes, err)
                             : open_dumps(in, path, n, tokens, hashes, err);
    free(hashes);
    if (status)
        kvd_sources_close(in);
    return status;
}

/* Returns the number of singular values below 1e-5 times the largest. X^T X cannot resolve them. */
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
            "%s: warning: pair '%s' has %zu rows for %zu dimensions: the last %zu singular values "
            "are 0\n",
            program, kvd_pair_name[pair], rows, d, d - rows);
        return;
    }
    if (s->pair[pair].by_tsqr)
        fprintf(
            stderr,
            "%s: note: pair '%s': %zu heads with singular values below %g of their largest were "
            "decomposed "
            "by tsqr, which resolves them\n",
            program, kvd_pair_name[pair], s->pair[pair].by_tsqr, KVD_GRAM_LIMIT);
    const size_t blurred = from_moments && cfg->method == KVD_BY_GRAM && !kvd_pair_balanced(pair)
                               ? count_blurred(s, pair)
                               : 0;
    if (blurred)
        fprintf(
            stderr,
            "%s: warning: pair '%s': %zu singular values are below 1e-5 of their head's largest, "
            "where "
            "gram is "
            "good to less than 1e-6; --method tsqr on activations resolves them\n",
            program, kvd_pair_name[pair], blurred);
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
                                      kvd_json_real(x.mean_max_sigma), "cv_max_sigma",
                                      kvd_json_real(x.cv_max_sigma), "effective_rank",
                                      kvd_json_real(x.effective_rank), "rank90",
                                      kvd_json_real(x.rank90), "rank99", kvd_json_real(x.rank99)));
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
        printf("K-means: %zu %scentroids for every head of Q, K and V, %.1f iterations, %.3g %% of "
               "the energy of the rows lost\n",
               c->centroids, c->weighted ? "weighted " : "", c->kmeans_iterations,
               100 * c->kmeans_residual);
    printf("seconds:");
    if (c->seconds_rows > 0)
        printf(" rows %.3g,", c->seconds_rows);
    if (c->centroids)
        printf(" K-means %.3g,", c->seconds_kmeans);
    printf(" decomposition %.3g; recording the inputs took %.3g\n", c->seconds_decompose,
           c->seconds_collect);
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
        char cv[32] = "-";
        if (!isnan(x.cv_max_sigma))
            (void)snprintf(cv, sizeof cv, "%.2f%%", 100 * x.cv_max_sigma);
        printf("%-5s %-6s %6zu %10zu %12.5g %8s %9.2f %9.2f %9.2f\n", kvd_pair_name[p],
               kvd_pair_balanced((kvd_pair)p) ? "gram" : s->method, x.heads, x.n_rows,
               x.mean_max_sigma, cv, x.effective_rank, x.rank90, x.rank99);
    }
    print_how(gpu, cfg, s);
    printf("CV: sample standard deviation / mean of the largest singular value over heads\n"
           "eff.rank: effective rank, exp of the entropy of sigma^2\n"
           "dims 90%%, 99%%: leading dimensions that hold this share of sum sigma^2\n");
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
