/* Plugin for tests/methods/test_plugin.sh that breaks a rule of the plugin interface, selected by
 * parameter `how`. If compiled with -DTABLE=N, it has the N-th of several wrong method tables. */
#include <kvdim/plugin_bits.h>
#include <kvdim/plugin_tokens.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#ifndef TABLE
#define TABLE 0
#endif

static const kvdim_key keys[] = {
    {"how", TABLE == 5 ? 9999 : 0, 0, 100, 1, TABLE == 6 ? "two\nlines" : "rule that is broken"},
    {TABLE == 7 ? "how" : "other", 0, 0, 1, 0, "a second key"},
};

static int how_of(const void *self)
{
    return (int)*(const double *)self;
}

static int list(int how, size_t n, uint32_t *kept, size_t *n_kept, char *error)
{
    switch (how) {
    case 1:
        *n_kept = n + 7;
        return 0;
    case 2:
        *n_kept = SIZE_MAX;
        return 0;
    case 3:
        *n_kept = 0;
        return 0;
    case 4:
        kept[0] = 1;
        kept[1] = 0;
        return 0;
    case 5:
        kept[1] = kept[0];
        return 0;
    case 6:
        kept[n - 1] = UINT32_MAX;
        return 0;
    case 7:
        kept[n] = 3;
        return 0;
    case 8:
        memset(error, 'x', KVDIM_ERROR_BYTES);
        return 1;
    case 9:
        return -1;
    default:
        return 0;
    }
}

static size_t state_bytes(const void *self, size_t n)
{
    return how_of(self) == 10 ? SIZE_MAX : n;
}

static size_t window(const double *value)
{
    return how_of(value) == 11 ? SIZE_MAX : 4;
}

static int prompt(const void *self, void *state, const kvdim_prompt *p, uint32_t *kept,
                  size_t *n_kept, char *error)
{
    memset(state, 1, p->n);
    return list(how_of(self), p->n, kept, n_kept, error);
}

static int step(const void *self, void *state, const kvdim_step *s, uint32_t *kept, size_t *n_kept,
                char *error)
{
    (void)state;
    return list(how_of(self) - 20, s->n, kept, n_kept, error);
}

static int choose(const void *self, void *state, const kvdim_read *r, uint32_t *read,
                  size_t *n_read, char *error)
{
    (void)state;
    if (how_of(self) == 0 && r->n > 1)
        *n_read = r->n - 1;
    return list(how_of(self) - 40, r->n, read, n_read, error);
}

static double select_bits(const void *self, const void *state, size_t n, size_t d)
{
    (void)state;
    return how_of(self) == 60 ? -1 : how_of(self) == 61 ? NAN : (double)(n * d);
}

static void bits_window(const double *value, int32_t side, size_t *window, size_t *block)
{
    const int how = how_of(value);
    *window = how == 1 ? SIZE_MAX : side == KVDIM_SIDE_VALUES ? 3 : 0;
    *block = how == 2 ? 0 : how == 3 ? SIZE_MAX : 1;
}

static int code(const void *self, const kvdim_block *b, float *decoded, double *payload,
                double *side_bits, char *error)
{
    const int how = how_of(self);
    const size_t n = b->n * b->d;
    memcpy(decoded, b->x, (how == 4 ? n - 1 : n) * sizeof *decoded);
    *payload = how == 5 ? -1 : how == 6 ? NAN : (double)n;
    *side_bits = how == 7 ? INFINITY : how == 8 ? -1e300 : 1;
    if (how == 9)
        decoded[n / 2] = NAN;
    if (how == 10)
        decoded[n] = 1;
    if (how == 11)
        snprintf(error, KVDIM_ERROR_BYTES, "layer %d has\na line feed", (int)b->layer);
    return how == 11;
}

static const kvdim_tokens_method hostile = {
    .method = {.struct_size = TABLE == 4 ? 8 : sizeof hostile,
               .axis = TABLE == 3 ? 77 : KVDIM_AXIS_TOKENS,
               .name = TABLE == 1   ? "zack"
                       : TABLE == 2 ? "No Name"
                                    : "hostile",
               .summary = "breaks a rule",
               .key = keys,
               .n_keys = TABLE == 8 ? 4000000000u : 2,
               .sweep_key = TABLE == 9 ? "nothing" : NULL,
               .needs = TABLE == 10 ? 0xFF00 : KVDIM_NEEDS_PROBABILITIES},
    .entry_bits = TABLE == 11 ? NAN : 0,
    .state_bytes = state_bytes,
    .window = window,
    .prompt = TABLE == 12 ? NULL : prompt,
    .step = step,
    .select = choose,
    .select_bits = select_bits,
};
static const kvdim_bits_method hostilebits = {
    .method = {.struct_size = sizeof hostilebits,
               .axis = KVDIM_AXIS_BITS,
               .name = TABLE == 13 ? "hostile" : "hostilebits",
               .summary = "breaks a rule",
               .key = keys,
               .n_keys = 1},
    .window = bits_window,
    .code = TABLE == 14 ? NULL : code,
};
static const kvdim_method *const methods[] = {&hostile.method,
                                              TABLE == 15 ? NULL : &hostilebits.method};

#if TABLE == 20
#define kvdim_plugin_v1 kvdim_plugin_v2
#endif
const kvdim_plugin *kvdim_plugin_v1(void);
const kvdim_plugin *kvdim_plugin_v1(void)
{
    static const kvdim_plugin plugin = {TABLE == 16 ? 999 : KVDIM_PLUGIN_ABI,
                                        TABLE == 17 ? 3 : sizeof plugin, TABLE == 18 ? "" : "0",
                                        TABLE == 19 ? 4000000000u : 2, methods};
    return TABLE == 21 ? NULL : &plugin;
}
