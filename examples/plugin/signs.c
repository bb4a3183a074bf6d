/*
 * signs: a bits method as a plugin of kvdim. Every `group` numbers of a key or a value are stored
 * as their signs and one scale in bfloat16. The scale is the mean of the magnitudes, which has the
 * smallest squared error.
 *
 *     cc -shared -fPIC -O2 -I/usr/local/include signs.c -o signs.so
 *     kvdim-eval MODEL --text book.txt --plugin signs.so --method signs,group=16 -o a.h5
 */
#include <kvdim/plugin_bits.h>
#include <math.h>
#include <string.h>

static const kvdim_key keys[] = {
    {"group", 16, 1, 1024, 1, "numbers that share a scale"},
    {"recent", 32, 0, 65536, 1, "newest tokens that stay exact"},
};

static float bfloat16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xFFFF0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void window(const double *value, int32_t side, size_t *window, size_t *block)
{
    (void)side;
    *window = (size_t)value[1];
    *block = 1;
}

/* `self` is the array of the keys' values, because the method has no `open`. */
static int code(const void *self, const kvdim_block *b, float *decoded, double *payload,
                double *side_bits, char *error)
{
    const size_t group = (size_t) * (const double *)self;
    (void)error;
    *payload = (double)(b->n * b->d);
    *side_bits = 16 * (double)(b->n * ((b->d + group - 1) / group));
    for (size_t t = 0; t < b->n; t++)
        for (size_t from = 0; from < b->d; from += group) {
            const size_t some = b->d - from < group ? b->d - from : group;
            const float *const x = b->x + t * b->d + from;
            double sum = 0;
            for (size_t i = 0; i < some; i++)
                sum += fabs((double)x[i]);
            const float scale = bfloat16((float)(sum / (double)some));
            for (size_t i = 0; i < some; i++)
                decoded[t * b->d + from + i] = x[i] < 0 ? -scale : scale;
        }
    return 0;
}

static const kvdim_bits_method signs = {
    .method = {.struct_size = sizeof signs,
               .axis = KVDIM_AXIS_BITS,
               .name = "signs",
               .summary = "a sign for each number and a scale for each group",
               .key = keys,
               .n_keys = 2,
               .sweep_key = "group",
               .sweep_most = 4,
               .sweep_least = 64,
               .sweep_ratio = 1},
    .window = window,
    .code = code,
};
static const kvdim_method *const methods[] = {&signs.method};

const kvdim_plugin *kvdim_plugin_v1(void)
{
    static const kvdim_plugin plugin = {KVDIM_PLUGIN_ABI, sizeof plugin, "1.0", 1, methods};
    return &plugin;
}
