/*
 * longkeys: a token method as a plugin of kvdim. Every KV head keeps the tokens of the prompt with
 * the largest key norms, and the newest tokens.
 *
 *     cc -shared -fPIC -O2 -I/usr/local/include longkeys.c -o longkeys.so
 *     kvdim-eval MODEL --text book.txt --prompt 128 --plugin longkeys.so --method longkeys -o a.h5
 */
#include <kvdim/plugin_tokens.h>
#include <stdio.h>
#include <stdlib.h>

static const kvdim_key keys[] = {
    {"budget", 0.5, 0.01, 1, 0, "fraction of the tokens of the prompt that are kept"},
    {"recent", 8, 1, 1024, 1, "newest tokens among them"},
};

typedef struct {
    double square; /* squared norm of the key */
    uint32_t token;
} candidate;

static int by_norm(const void *a, const void *b)
{
    const candidate *const x = a, *const y = b;
    return x->square != y->square ? (x->square < y->square ? 1 : -1)
                                  : (x->token < y->token) - (x->token > y->token);
}

static int by_position(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* `self` is the array of the keys' values, because the method has no `open`. */
static int prompt(const void *self, void *state, const kvdim_prompt *p, uint32_t *kept,
                  size_t *n_kept, char *error)
{
    const double *const value = self;
    const size_t budget = (size_t)(value[0] * (double)p->n),
                 recent = (size_t)value[1] < budget ? (size_t)value[1] : budget,
                 old = p->n - recent;
    candidate *const all = malloc((old + 1) * sizeof *all);
    (void)state;
    if (budget == 0 || !all) {
        snprintf(error, KVDIM_ERROR_BYTES, "budget %g keeps none of %zu tokens", value[0], p->n);
        free(all);
        return -1;
    }
    for (size_t t = 0; t < old; t++) {
        all[t] = (candidate){0, (uint32_t)t};
        for (size_t i = 0; i < p->d; i++)
            all[t].square += (double)p->k[t * p->stride + i] * (double)p->k[t * p->stride + i];
    }
    qsort(all, old, sizeof *all, by_norm);
    for (size_t i = 0; i < budget; i++)
        kept[i] = i < budget - recent ? all[i].token : (uint32_t)(p->n - budget + i);
    qsort(kept, budget, sizeof *kept, by_position);
    *n_kept = budget;
    free(all);
    return 0;
}

static const kvdim_tokens_method longkeys = {
    .method = {.struct_size = sizeof longkeys,
               .axis = KVDIM_AXIS_TOKENS,
               .name = "longkeys",
               .summary = "tokens of the prompt with the longest keys, and the newest",
               .key = keys,
               .n_keys = 2,
               .sweep_key = "budget",
               .sweep_most = 0.9,
               .sweep_least = 0.1,
               .sweep_ratio = 1},
    .prompt = prompt,
};
static const kvdim_method *const methods[] = {&longkeys.method};

const kvdim_plugin *kvdim_plugin_v1(void)
{
    static const kvdim_plugin plugin = {KVDIM_PLUGIN_ABI, sizeof plugin, "1.0", 1, methods};
    return &plugin;
}
