/* signs: a plugin that stores every `group` numbers of a key or value as their signs and one
 * bfloat16 scale, the mean magnitude of these numbers.
 *
 *   cc -shared -fPIC -O2 -I/usr/local/include signs.c -o signs.so
 *   kvdim-eval MODEL --text book.txt --plugin signs.so --method signs,group=16 -o a.h5 */
#include <kvdim/plugin_bits.h>
#include <math.h>

static const kvdim_key keys[] = {
    {"group", 16, 1, 1024, 1, "numbers that share a scale"},
    {"recent", 32, 0, 65536, 1, "newest tokens that stay exact"},
};

static void window(const double *value, int32_t side, size_t *window, size_t *block)
{
    (void)side;
    *window = (size_t)value[1];
    *block = 1;
}

/* Quantises a block of K or V. `self`: parameter values of the quantisation method. */
static int code(const void *self, const kvdim_block *b, float *decoded, double *payload,
                double *side_bits, char *error)
{
    const size_t group = (size_t) * (const double *)self;
    (void)error;
    *payload = (double)(b->n * b->d);
    *side_bits = 0;
    for (size_t at = 0, end; at < b->n * b->d; at = end, *side_bits += 16) {
        const size_t row_end = (at / b->d + 1) * b->d;
        double sum = 0;
        int exponent;
        end = at + group < row_end ? at + group : row_end;
        for (size_t i = at; i < end; i++)
            sum += fabs((double)b->x[i]);
        const double fraction = frexp(sum / (double)(end - at), &exponent);
        const double scale = ldexp(floor(256 * fraction), exponent - 8); /* 8 significant bits */
        for (size_t i = at; i < end; i++)
            decoded[i] = (float)(b->x[i] < 0 ? -scale : scale);
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
    .code = code};
KVDIM_PLUGIN("1.0", &signs.method)
