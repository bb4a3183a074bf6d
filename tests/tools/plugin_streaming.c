/* Plugin for tests/methods/test_plugin.sh: method `streaming`, written with public headers
 * alone. */
#include <kvdim/plugin_tokens.h>

static const kvdim_key keys[] = {
    {"sink", 4, 0, 1 << 20, 1, "first tokens kept"},
    {"recent", 0.2, 0, 1 << 24, 0, "newest tokens kept: below 1 a fraction of the sequence"},
};

static void keep(const double *value, size_t n, size_t n_expected, uint32_t *kept, size_t *n_kept)
{
    const size_t sink = (size_t)value[0],
                 recent = value[1] < 1 ? (size_t)(value[1] * (double)n_expected) : (size_t)value[1];
    *n_kept = 0;
    for (size_t i = 0; i < n; i++)
        if (i < sink || i + recent >= n)
            kept[(*n_kept)++] = (uint32_t)i;
}

static int prompt(const void *self, void *state, const kvdim_prompt *p, uint32_t *kept,
                  size_t *n_kept, char *error)
{
    (void)state, (void)error;
    keep(self, p->n, p->n_expected, kept, n_kept);
    return 0;
}

static int step(const void *self, void *state, const kvdim_step *s, uint32_t *kept, size_t *n_kept,
                char *error)
{
    (void)state, (void)error;
    keep(self, s->n, s->n_expected, kept, n_kept);
    return 0;
}

static int prompt_heads(const void *self, void *const *state, const kvdim_prompt *p, size_t n_heads,
                        uint32_t *const *kept, size_t *n_kept, char *error)
{
    (void)state, (void)error;
    for (size_t h = 0; h < n_heads; h++)
        keep(self, p[h].n, p[h].n_expected, kept[h], &n_kept[h]);
    return 0;
}

static int step_heads(const void *self, void *const *state, const kvdim_step *s, size_t n_heads,
                      uint32_t *const *kept, size_t *n_kept, char *error)
{
    (void)state, (void)error;
    for (size_t h = 0; h < n_heads; h++)
        keep(self, s[h].n, s[h].n_expected, kept[h], &n_kept[h]);
    return 0;
}

#define METHOD(title)                                                                              \
    .method = {.struct_size = sizeof(kvdim_tokens_method),                                         \
               .axis = KVDIM_AXIS_TOKENS,                                                          \
               .name = title,                                                                      \
               .summary = "the first tokens and the newest",                                       \
               .key = keys,                                                                        \
               .n_keys = 2,                                                                        \
               .sweep_key = "recent",                                                              \
               .sweep_most = 0.9,                                                                  \
               .sweep_least = 0.02,                                                                \
               .sweep_ratio = 1}

static const kvdim_tokens_method one = {METHOD("mystreaming"), .prompt = prompt, .step = step};
static const kvdim_tokens_method heads = {METHOD("layerstreaming"), .prompt_heads = prompt_heads,
                                          .step_heads = step_heads};
KVDIM_PLUGIN("2.5", &one.method, &heads.method)
