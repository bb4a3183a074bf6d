/* longkeys: a plugin that keeps the prompt tokens with the largest key norms, and the newest
 * tokens.
 *
 *   cc -shared -fPIC -O2 -I/usr/local/include longkeys.c -o longkeys.so
 *   kvdim-eval MODEL --text book.txt --prompt 128 --plugin longkeys.so --method longkeys -o a.h5 */
#include <kvdim/plugin_tokens.h>
#include <stdio.h>
#include <stdlib.h>

static const kvdim_key keys[] = {
    {"budget", 0.5, 0.01, 1, 0, "fraction of the tokens of the prompt that are kept"},
    {"recent", 8, 1, 1024, 1, "newest tokens among them"},
};

/* Chooses the prompt tokens to keep. `self` points to the values of the method's parameters. */
static int prompt(const void *self, void *state, const kvdim_prompt *p, uint32_t *kept,
                  size_t *n_kept, char *error)
{
    const double *const value = self;
    const size_t budget = (size_t)(value[0] * (double)p->n),
                 recent = (size_t)value[1] < budget ? (size_t)value[1] : budget;
    double *const square = calloc(p->n, sizeof *square); /* squared norm of each token's key */
    (void)state;
    if (budget == 0 || !square) {
        snprintf(error, KVDIM_ERROR_BYTES, "budget %g keeps none of %zu tokens", value[0], p->n);
        free(square);
        return -1;
    }
    *n_kept = 0;
    for (size_t t = 0; t < p->n; t++)
        for (size_t i = 0; i < p->d; i++)
            square[t] += (double)p->k[t * p->stride + i] * (double)p->k[t * p->stride + i];
    for (size_t t = 0; t < p->n; t++) {
        /* number of tokens whose keys have a larger norm than token t's key; ignores the newest
         * tokens */
        size_t longer = 0;
        for (size_t u = 0; u < p->n - recent; u++)
            longer += square[u] > square[t] || (square[u] == square[t] && u > t);
        if (t >= p->n - recent || longer < budget - recent)
            kept[(*n_kept)++] = (uint32_t)t;
    }
    free(square);
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
    .prompt = prompt};
KVDIM_PLUGIN("1.0", &longkeys.method)
