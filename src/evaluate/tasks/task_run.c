#include "evaluate/tasks/task_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "evaluate/tasks/text_scores.h"

enum { RESAMPLES = 2000 };

const kvd_task_measure_info kvd_task_measures[KVD_N_FREE_MEASURES] = {
    {KVD_TASK_GENERATE, "rouge1", "1",
     "ROUGE-1 (F1) of generated texts against the uncompressed model's", true},
    {KVD_TASK_GENERATE, "rouge1_precision", "1", "its precision", true},
    {KVD_TASK_GENERATE, "rouge1_recall", "1", "its recall", true},
    {KVD_TASK_GENERATE, "edit_similarity", "1",
     "1 - Levenshtein distance / longer length of generated texts from the uncompressed model's",
     true},
    {KVD_TASK_GENERATE, "exact", "1",
     "share of sequences whose every token is the uncompressed model's", true},
    {KVD_TASK_GENERATE, "agree_prefix", "token",
     "tokens before the first that is not the uncompressed model's; all of them where there is "
     "none",
     true},
    {KVD_TASK_GENERATE, "reference_rouge1", "1",
     "ROUGE-1 (F1) of generated texts against the references", false},
    {KVD_TASK_GENERATE, "reference_edit_similarity", "1",
     "edit similarity of generated texts to the references", false},
    {KVD_TASK_NEEDLE, "needle_exact", "1",
     "share of needles whose every token has the largest logit", false},
    {KVD_TASK_NEEDLE, "needle_prefix", "1",
     "share of a needle's tokens before the first that has not", false},
    {KVD_TASK_NEEDLE, "needle_nll", "nat", "negative log-likelihood of a needle per token", false},
    {KVD_TASK_NEEDLE, "needle_rank", "1",
     "mean rank of a needle's tokens by their logits, 1 the largest", false},
    {KVD_TASK_NEEDLE, "needle_agree", "1",
     "share of a needle's places where the largest logit is the uncompressed model's", true},
    {KVD_TASK_CLASSIFY, "class_correct", "1",
     "share of documents whose likeliest class is their label", false},
    {KVD_TASK_CLASSIFY, "class_agree", "1",
     "share of documents whose likeliest class is the uncompressed model's", true},
};

static size_t until_end(const kvd_task_run *f, const uint32_t *token, size_t n)
{
    size_t i = 0;
    while (i < n && !kvd_config_is_eos(f->config, token[i]))
        i++;
    return i;
}

/* Compares the tokens `mine`, generated for item i, with the item's reference text and with the
 * uncompressed model's tokens `theirs`. Stores the scores in *r. */
static int compare_texts(const kvd_task_run *f, kvd_task_result *r, size_t i, const uint32_t *mine,
                         size_t n, const uint32_t *theirs, size_t m, kvd_err *err)
{
    const kvd_task_items *const items = &f->items[KVD_TASK_GENERATE];
    size_t len, their_len;
    kvd_rouge rouge, against = {NAN, NAN, NAN};
    double edit, edit_against = NAN;
    char *const text = kvd_tokenizer_decode(f->tokenizer, mine, n, true, &len, err);
    char *const other =
        text ? kvd_tokenizer_decode(f->tokenizer, theirs, m, true, &their_len, err) : NULL;
    int status = !other || kvd_rouge_1(other, their_len, text, len, &rouge, err) ||
                 kvd_edit_similarity(other, their_len, text, len, &edit, err);
    if (!status && items->reference)
        status =
            kvd_rouge_1(items->reference[i], items->reference_len[i], text, len, &against, err) ||
            kvd_edit_similarity(items->reference[i], items->reference_len[i], text, len,
                                &edit_against, err);
    if (!status) {
        r->value[KVD_TASK_ROUGE1][i] = rouge.f1;
        r->value[KVD_TASK_ROUGE1_PRECISION][i] = rouge.precision;
        r->value[KVD_TASK_ROUGE1_RECALL][i] = rouge.recall;
        r->value[KVD_TASK_EDIT_SIMILARITY][i] = edit;
        r->value[KVD_TASK_REFERENCE_ROUGE1][i] = against.f1;
        r->value[KVD_TASK_REFERENCE_EDIT_SIMILARITY][i] = edit_against;
    }
    free(text);
    free(other);
    return status ? kvd_in(err, "item %zu", i) : 0;
}

static int score_generated(const kvd_task_run *f, kvd_task_result *r, const uint32_t *token,
                           const uint32_t *theirs, kvd_err *err)
{
    const kvd_task_items *const items = &f->items[KVD_TASK_GENERATE];
    for (size_t i = 0; i < items->n_items; i++) {
        const size_t at = items->run.end[i], n_new = items->run.end[i + 1] - at;
        const size_t n = until_end(f, token + at, n_new), m = until_end(f, theirs + at, n_new);
        const size_t same = kvd_agreeing_prefix(token + at, n, theirs + at, m);
        r->value[KVD_TASK_EXACT][i] = same == n && same == m;
        r->value[KVD_TASK_AGREE_PREFIX][i] = (double)same;
        if (f->tokenizer && compare_texts(f, r, i, token + at, n, theirs + at, m, err))
            return -1;
    }
    return 0;
}

static void score_needles(const kvd_task_run *f, kvd_task_result *r, const uint32_t *token,
                          const uint32_t *theirs, const double *log_p, const uint32_t *rank)
{
    const kvd_continuations *const c = &f->items[KVD_TASK_NEEDLE].run;
    for (size_t i = 0; i < c->n_sequences; i++) {
        const size_t at = c->end[i] + f->items[KVD_TASK_NEEDLE].lead, n = c->end[i + 1] - at,
                     right = kvd_agreeing_prefix(token + at, n, c->forced + at, n);
        double nll = 0, ranks = 0, agree = 0;
        for (size_t j = at; j < at + n; j++) {
            nll -= log_p[j];
            ranks += rank[j];
            agree += token[j] == theirs[j];
        }
        r->value[KVD_TASK_NEEDLE_EXACT][i] = right == n;
        r->value[KVD_TASK_NEEDLE_PREFIX][i] = (double)right / (double)n;
        r->value[KVD_TASK_NEEDLE_NLL][i] = nll / (double)n;
        r->value[KVD_TASK_NEEDLE_RANK][i] = ranks / (double)n;
        r->value[KVD_TASK_NEEDLE_AGREE][i] = agree / (double)n;
    }
}

static size_t choose(const kvd_task_items *items, size_t item, const double *log_p)
{
    size_t best = 0;
    double most = -INFINITY;
    for (size_t k = 0; k < items->n_classes; k++) {
        const size_t s = item * items->n_classes + k;
        double sum = 0;
        for (size_t j = items->run.end[s] + items->lead; j < items->run.end[s + 1]; j++)
            sum += log_p[j];
        if (sum > most) {
            most = sum;
            best = k;
        }
    }
    return best;
}

static void score_classes(const kvd_task_run *f, kvd_task_result *r, const double *log_p,
                          bool reference)
{
    const kvd_task_items *const items = &f->items[KVD_TASK_CLASSIFY];
    for (size_t i = 0; i < items->n_items; i++) {
        const size_t k = choose(items, i, log_p);
        if (reference)
            f->choice[i] = k;
        r->value[KVD_TASK_CLASS_CORRECT][i] = k == items->label[i];
        r->value[KVD_TASK_CLASS_AGREE][i] = k == f->choice[i];
    }
}

/* Generates and scores the items of one task. `reference`: true if this is the uncompressed model's
 * run. */
static int run_task(kvd_task_run *f, kvd_task_task task, const char *name, const kvd_plan *plan,
                    bool reference, kvd_task_result *r, kvd_progress *progress, kvd_err *err)
{
    const kvd_task_items *const items = &f->items[task];
    const size_t places = items->run.end[items->run.n_sequences];
    uint32_t *const token = calloc(places, sizeof *token), *const rank =
                                                               calloc(places, sizeof *rank);
    double *const log_p = calloc(places, sizeof *log_p);
    int status = token && rank && log_p ? 0 : kvd_no_memory(err, "tokens", places * 16);
    const kvd_continued out = {.token = token,
                               .log_p = items->run.forced ? log_p : NULL,
                               .rank = items->run.forced ? rank : NULL};
    char run[200];
    snprintf(run, sizeof run, "%s/%d", name, (int)task);
    status = status || kvd_journal_generate(f->journal, run, f->generator, plan, &items->run, &out,
                                            &r->account, progress, err);
    if (f->part) {
        free(token);
        free(rank);
        free(log_p);
        return status ? -1 : 0;
    }
    if (!status && reference) {
        f->token[task] = calloc(places, sizeof *f->token[task]);
        if (f->token[task])
            memcpy(f->token[task], token, places * sizeof *token);
        else
            status = kvd_no_memory(err, "tokens", places * sizeof *token);
    }
    if (!status && task == KVD_TASK_GENERATE)
        status = score_generated(f, r, token, f->token[task], err);
    else if (!status && task == KVD_TASK_NEEDLE)
        score_needles(f, r, token, f->token[task], log_p, rank);
    else if (!status)
        score_classes(f, r, log_p, reference);
    if (!status && task == KVD_TASK_GENERATE)
        r->token = token;
    else
        free(token);
    free(rank);
    free(log_p);
    return status ? -1 : 0;
}

static int reserve(const kvd_task_run *f, kvd_task_result *r, kvd_err *err)
{
    for (int m = 0; m < KVD_N_FREE_MEASURES; m++) {
        const size_t n = f->items[kvd_task_measures[m].task].n_items;
        if (n && !(r->value[m] = malloc(n * sizeof *r->value[m])))
            return kvd_no_memory(err, "scores", n * sizeof *r->value[m]);
        for (size_t i = 0; i < n; i++)
            r->value[m][i] = NAN;
    }
    return 0;
}

static size_t steps_of(const kvd_task_run *f)
{
    size_t steps = 0;
    for (int t = 0; t < KVD_N_FREE_TASKS; t++)
        if (f->items[t].n_items)
            steps += f->items[t].run.end[f->items[t].run.n_sequences] - f->items[t].run.n_sequences;
    return steps * (size_t)f->config->n_layers * (size_t)f->config->n_kv_heads;
}

static int run_all(kvd_task_run *f, const char *name, const kvd_plan *plan, bool reference,
                   kvd_task_result *r, kvd_progress *progress, kvd_err *err)
{
    const double started = kvd_clock_s();
    kvd_task_result_release(r);
    if (reserve(f, r, err))
        return -1;
    for (int t = 0; t < KVD_N_FREE_TASKS; t++)
        if (f->items[t].n_items &&
            run_task(f, (kvd_task_task)t, name, plan, reference, r, progress, err))
            return -1;
    r->seconds = kvd_clock_s() - started;
    if (f->part)
        return 0;
    const kvd_stepwise_account *const a = &r->account;
    /* factor from a number of bits to a fraction of an uncompressed 16-bit cache */
    const double unit =
        (double)kvd_dtype_bytes(plan->type) / (double)kvd_dtype_bytes(KVD_F16) / a->dense;
    r->cache_share = a->rows ? (a->payload + a->side + a->entries) * unit : (double)NAN;
    r->read_share = a->rows ? a->read * unit : (double)NAN;
    r->ran = true;
    return kvd_cache_check_steps(&r->account, plan, steps_of(f), err);
}

int kvd_task_run_plan(kvd_task_run *f, const char *name, const kvd_plan *plan, kvd_task_result *r,
                      kvd_progress *progress, kvd_err *err)
{
    return run_all(f, name, plan, false, r, progress, err);
}

void kvd_task_result_release(kvd_task_result *r)
{
    for (int m = 0; m < KVD_N_FREE_MEASURES; m++)
        free(r->value[m]);
    free(r->token);
    *r = (kvd_task_result){0};
}

size_t kvd_task_run_sequences(const kvd_task_run *f)
{
    size_t n = 0;
    for (int t = 0; t < KVD_N_FREE_TASKS; t++)
        n += f->items[t].run.n_sequences;
    return n;
}

int kvd_task_run_init(kvd_task_run *f, const kvd_checkpoint *c, const kvd_tokenizer *tokenizer,
                      const kvd_generator_spec *spec, kvd_progress *progress, kvd_err *err)
{
    /* no compression: K and V are cached in the number type of the forward pass */
    const kvd_plan uncompressed = {.type = spec->compute};
    kvd_generator_spec sized = *spec;
    size_t longest = 1;
    f->config = kvd_checkpoint_config(c);
    f->tokenizer = tokenizer;
    for (int t = 0; t < KVD_N_FREE_TASKS; t++)
        for (size_t s = 0; s < f->items[t].run.n_sequences; s++) {
            const kvd_continuations *const r = &f->items[t].run;
            const size_t n = r->offset[s + 1] - r->offset[s] + r->end[s + 1] - r->end[s];
            longest = n > longest ? n : longest;
        }
    const size_t documents = f->items[KVD_TASK_CLASSIFY].n_items;
    if (!(f->choice = calloc(documents + 1, sizeof *f->choice)))
        return kvd_no_memory(err, "classes", documents * sizeof *f->choice);
    sized.max_len = longest;
    f->part = spec->n_parts > 1;
    if (!(f->generator = kvd_generator_new(c, &sized, err)))
        return -1;
    return run_all(f, "uncompressed", &uncompressed, true, &f->reference, progress, err)
               ? kvd_in(err, "uncompressed model")
               : 0;
}

void kvd_task_run_release(kvd_task_run *f)
{
    for (int t = 0; t < KVD_N_FREE_TASKS; t++) {
        kvd_task_items_release(&f->items[t]);
        free(f->token[t]);
    }
    kvd_task_result_release(&f->reference);
    kvd_generator_free(f->generator);
    free(f->choice);
    *f = (kvd_task_run){0};
}

int kvd_task_results_mean(const kvd_task_run *f, const kvd_task_result *r, size_t n,
                          kvd_task_result *mean, double spread[KVD_N_FREE_MEASURES], kvd_err *err)
{
    double *const of_seed = malloc(n * sizeof *of_seed);
    int status = of_seed ? reserve(f, mean, err) : kvd_no_memory(err, "scores", n * sizeof(double));
    for (int m = 0; !status && m < KVD_N_FREE_MEASURES; m++) {
        const size_t items = f->items[kvd_task_measures[m].task].n_items;
        spread[m] = NAN;
        for (size_t k = 0; items && k < n; k++)
            of_seed[k] = kvd_mean(r[k].value[m], items);
        for (size_t i = 0; i < items; i++) {
            double sum = 0;
            for (size_t k = 0; k < n; k++)
                sum += r[k].value[m][i] / (double)n;
            mean->value[m][i] = sum;
        }
        if (items)
            spread[m] = kvd_stddev(of_seed, n);
    }
    for (size_t k = 0; !status && k < n; k++) {
        mean->seconds += r[k].seconds;
        mean->cache_share += r[k].cache_share / (double)n;
        mean->read_share += r[k].read_share / (double)n;
    }
    free(of_seed);
    return status;
}

/* Sums measure m over the test items of each result. Computes the ratio (sum of *r - sum of *less)
 * / sum of *of, with a bootstrap interval. A NULL `less` counts as 0, and a NULL `of` as 1 per
 * item. */
static int interval(const kvd_task_run *f, kvd_task_measure m, const kvd_task_result *r,
                    const kvd_task_result *less, const kvd_task_result *of, uint64_t seed,
                    kvd_interval *out, kvd_err *err)
{
    const kvd_task_items *const items = &f->items[kvd_task_measures[m].task];
    double *const sum = calloc(2 * items->n_clusters + 1, sizeof *sum);
    int status = 0;
    *out = (kvd_interval){NAN, NAN, NAN};
    if (!sum)
        return kvd_no_memory(err, "clusters", 2 * items->n_clusters * sizeof *sum);
    double *const base = sum + items->n_clusters;
    bool missing = false;
    for (size_t i = 0; i < items->n_items; i++) {
        const double x = r->value[m][i] - (less ? less->value[m][i] : 0),
                     y = of ? of->value[m][i] : 1;
        missing = missing || isnan(x) || isnan(y);
        sum[items->cluster[i]] += x;
        base[items->cluster[i]] += y;
    }
    if (!missing)
        status = kvd_bootstrap_ratio(sum, base, items->n_clusters, RESAMPLES, seed, out, err);
    free(sum);
    return status;
}

int kvd_task_interval(const kvd_task_run *f, kvd_task_measure m, const kvd_task_result *r,
                      const kvd_task_result *less, uint64_t seed, kvd_interval *out, kvd_err *err)
{
    return interval(f, m, r, less, NULL, seed, out, err);
}

int kvd_task_share(const kvd_task_run *f, kvd_task_measure m, const kvd_task_result *r,
                   uint64_t seed, kvd_interval *out, kvd_err *err)
{
    return interval(f, m, r, NULL, &f->reference, seed, out, err);
}
