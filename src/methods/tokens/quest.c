/* Method quest: a decode step reads the groups of cached tokens whose keys may have the largest
 * products with the query (Tang et al. 2024, Quest, arXiv 2406.10774, section 3). Upper bounds of
 * products follow from the extremes of each key channel in a group. */
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { BUDGET, PAGE };
static const kvd_parameter parameters[] = {
    {"budget", 0.25, 0, KVD_BUDGET_MOST, false,
     "tokens read by a step, in whole pages: below 1 a fraction of those held, else a number"},
    {"page", 16, 1, 4096, true, "number of tokens of a page"},
    {NULL, 0, 0, 0, false, NULL},
};

static size_t count_pages(const kvd_parameter_values *v, const uint32_t *position, size_t n)
{
    const uint32_t page = (uint32_t)v->value[PAGE];
    size_t pages = 0;
    for (size_t i = 0; i < n; i++)
        pages += i == 0 || position[i] / page != position[i - 1] / page;
    return pages;
}

static double select_bits(const void *self, const void *state, const uint32_t *position, size_t n,
                          size_t d, size_t number_bits)
{
    (void)state;
    return 2 * (double)(count_pages(kvd_tokens_values(self), position, n) * d * number_bits);
}

static void bound_keys(const kvd_read_choice *c, const float *k, size_t n, float *low, float *high,
                       void *rounded)
{
    memcpy(low, k, c->d * sizeof *low);
    memcpy(high, k, c->d * sizeof *high);
    for (size_t i = 1; i < n; i++)
        for (size_t j = 0; j < c->d; j++) {
            const float x = k[i * c->d + j];
            low[j] = x < low[j] ? x : low[j];
            high[j] = x > high[j] ? x : high[j];
        }
    kvd_from_f32(c->type, low, rounded, c->d);
    kvd_to_f32(c->type, rounded, low, c->d);
    kvd_from_f32(c->type, high, rounded, c->d);
    kvd_to_f32(c->type, rounded, high, c->d);
}

static double bound(const kvd_read_choice *c, const float *low, const float *high)
{
    double sum = 0;
    for (int g = 0; g < c->group; g++)
        for (size_t j = 0; j < c->d; j++) {
            const float q = c->q[(size_t)g * c->ldq + j];
            sum += (double)(q < 0 ? q * low[j] : q * high[j]);
        }
    return sum;
}

static int choose(const void *self, void *state, const kvd_read_choice *c, uint8_t *read,
                  kvd_err *err)
{
    (void)state;
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const uint32_t page = (uint32_t)v->value[PAGE];
    const size_t pages = count_pages(v, c->position, c->n),
                 budget = kvd_tokens_budget(v->value[BUDGET], c->n),
                 wanted = (budget + page - 1) / page;
    double *const score = malloc(pages * sizeof *score);
    uint8_t *const level = malloc(pages);
    float *const low = malloc(3 * c->d * sizeof *low), *const high = low + c->d;
    int status = score && level && low ? 0 : kvd_no_memory(err, "pages", pages * sizeof *score);
    for (size_t i = 0, at = 0, end; !status && i < c->n; i = end, at++) {
        for (end = i + 1; end < c->n && c->position[end] / page == c->position[i] / page;)
            end++;
        level[at] = KVD_LEVEL_HIGH;
        bound_keys(c, c->k + i * c->d, end - i, low, high, high + c->d);
        score[at] = bound(c, low, high);
    }
    /* The last page, with the newest tokens, is always read, so only the other pages are ranked. */
    status =
        status || kvd_tokens_keep_top(score, pages - 1, wanted > 1 ? wanted - 1 : 0, level, err);
    for (size_t i = 0, at = 0; !status && i < c->n; i++) {
        at += i > 0 && c->position[i] / page != c->position[i - 1] / page;
        read[i] = level[at] != KVD_LEVEL_DROPPED;
    }
    free(low);
    free(level);
    free(score);
    return status ? -1 : 0;
}

static kvd_read_rule read_rule(const kvd_parameter_values *v)
{
    return (kvd_read_rule){.budget = v->value[BUDGET], .page = (size_t)v->value[PAGE]};
}

const kvd_tokens_method kvd_tokens_quest = {
    .info = {.name = "quest",
             .summary = "every step reads the pages whose keys may have the largest scores",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.9, 0.02, true, NULL, 0, 0},
             .gpu = &kvd_gpu_selection},
    .read_rule = read_rule,
    .check = kvd_tokens_check_budget,
    .select = choose,
    .select_bits = select_bits,
};
