#include "model/checkpoint/tensor.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/half.h"

/* elements per block of a quantised tensor: SMALL in formats such as Q8_0, LARGE in formats such as
 * Q4_K */
enum { SMALL = 32, HALF = SMALL / 2, LARGE = 256, GROUPS = LARGE / 16 };

static const kvd_block_layout layouts[] = {
    [KVD_Q8_0] = {"q8_0", SMALL, 34},         [KVD_Q4_0] = {"q4_0", SMALL, 18},
    [KVD_Q4_1] = {"q4_1", SMALL, 20},         [KVD_Q5_0] = {"q5_0", SMALL, 22},
    [KVD_Q5_1] = {"q5_1", SMALL, 24},         [KVD_Q2_K] = {"q2_k", LARGE, 84},
    [KVD_Q3_K] = {"q3_k", LARGE, 110},        [KVD_Q4_K] = {"q4_k", LARGE, 144},
    [KVD_Q5_K] = {"q5_k", LARGE, 176},        [KVD_Q6_K] = {"q6_k", LARGE, 210},
    [KVD_IQ4_NL] = {"iq4_nl", SMALL, 18},     [KVD_MXFP4] = {"mxfp4", SMALL, 17},
    [KVD_MXFP4_APART] = {"mxfp4", SMALL, 16},
};

const kvd_block_layout *kvd_block_layout_of(kvd_packing packing)
{
    return packing == KVD_PLAIN || packing == KVD_RANDOM ? NULL : &layouts[packing];
}

static float f16(const unsigned char *p)
{
    float x;
    kvd_to_f32(KVD_F16, p, &x, 1);
    return x;
}

static int as_signed(unsigned char byte)
{
    return byte < 128 ? byte : byte - 256;
}

/* Returns code i of 32 codes of 4 bits. The low halves of the 16 bytes q are codes 0 to 15, the
 * high halves codes 16 to 31. */
static int nibble(const unsigned char *q, size_t i)
{
    return i < HALF ? q[i] & 15 : q[i - HALF] >> 4;
}

/* Returns the top bit of the i-th 5-bit code, as 0 or 16. */
static int fifth(const unsigned char *high, size_t i)
{
    return (high[i / 8] >> (i % 8) & 1) << 4;
}

static float small_value(kvd_packing packing, const unsigned char *b, float d, size_t i)
{
    static const signed char table[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
    switch (packing) {
    case KVD_Q8_0:
        return d * (float)as_signed(b[2 + i]);
    case KVD_Q4_0:
        return d * (float)(nibble(b + 2, i) - 8);
    case KVD_Q4_1:
        return d * (float)nibble(b + 4, i) + f16(b + 2);
    case KVD_Q5_0:
        return d * (float)((nibble(b + 6, i) | fifth(b + 2, i)) - 16);
    case KVD_Q5_1:
        return d * (float)(nibble(b + 8, i) | fifth(b + 4, i)) + f16(b + 2);
    default:
        assert(packing == KVD_IQ4_NL);
        return d * (float)table[nibble(b + 2, i)];
    }
}

/* values of the 4-bit float E2M1: sign, two bits of exponent, one of mantissa */
static const float e2m1[16] = {0.0f, 0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* Returns the value of an 8-bit scale (E8M0), a power of two; code 255 is NaN. */
static float power(unsigned char scale)
{
    return scale == 255 ? NAN : ldexpf(1.0f, scale - 127);
}

void kvd_mxfp4_read(const unsigned char *codes, unsigned char scale, size_t first, size_t n,
                    float *out)
{
    const float d = power(scale);
    for (size_t i = first; i < first + n; i++)
        out[i - first] = d * e2m1[i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15];
}

/* Decodes a Q2_K block: 16 bytes of scales and minima, 64 bytes of 2-bit codes, two float16
 * factors. */
static void read_q2_k(const unsigned char *b, float *out)
{
    const float d = f16(b + 80), m = f16(b + 82);
    for (size_t i = 0; i < LARGE; i++) {
        const unsigned char scale = b[i / 16], byte = b[16 + i / 128 * 32 + i % 32];
        const float dl = d * (float)(scale & 15), ml = m * (float)(scale >> 4);
        out[i] = dl * (float)(byte >> i % 128 / 32 * 2 & 3) - ml;
    }
}

/* Decodes a Q3_K block: 32 bytes of codes' top bits, 64 bytes of lower bits, 12 bytes of scales, a
 * float16 factor. */
static void read_q3_k(const unsigned char *b, float *out)
{
    const unsigned char *packed = b + 96;
    const float d = f16(b + 108);
    float dl[GROUPS];
    for (size_t g = 0; g < GROUPS; g++) {
        const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4,
                  high = packed[8 + g % 4] >> g / 4 * 2 & 3;
        dl[g] = d * (float)((low | high << 4) - 32);
    }
    for (size_t i = 0; i < LARGE; i++) {
        const int low = b[32 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3,
                  high = b[i % 32] >> i / 32 & 1;
        out[i] = dl[i / 16] * (float)(low - (high ? 0 : 4));
    }
}

/* Unpacks the 6-bit scale and the 6-bit minimum of group g from the bytes p. */
static void scale_and_minimum(const unsigned char *p, size_t g, int *scale, int *minimum)
{
    if (g < 4) {
        *scale = p[g] & 63;
        *minimum = p[g + 4] & 63;
    } else {
        *scale = (p[g + 4] & 15) | p[g - 4] >> 6 << 4;
        *minimum = p[g + 4] >> 4 | p[g] >> 6 << 4;
    }
}

/* Decodes a Q4_K or Q5_K block: two float16 factors, 12 bytes of scales, in Q5_K 32 bytes of fifth
 * bits, 128 bytes of 4-bit codes. */
static void read_q4_k_q5_k(const unsigned char *b, bool fifth_bit, float *out)
{
    const unsigned char *high = b + 16, *low = fifth_bit ? b + 48 : b + 16;
    const float d = f16(b), m = f16(b + 2);
    for (size_t g = 0; g < 8; g++) {
        int scale, minimum;
        scale_and_minimum(b + 4, g, &scale, &minimum);
        const float dl = d * (float)scale, ml = m * (float)minimum;
        for (size_t i = 0; i < 32; i++) {
            int q = low[g / 2 * 32 + i] >> g % 2 * 4 & 15;
            if (fifth_bit)
                q |= (high[i] >> g & 1) << 4;
            out[g * 32 + i] = dl * (float)q - ml;
        }
    }
}

/* Decodes a Q6_K block of 256 codes of 6 bits. The block has the codes' low 4 bits (128 bytes),
 * their high 2 bits (64 bytes), scales, and a float16 factor. */
static void read_q6_k(const unsigned char *b, float *out)
{
    const float d = f16(b + 208);
    for (size_t i = 0; i < LARGE; i++) {
        const size_t half = i / 128, in = i % 128;
        const int low = b[half * 64 + in % 64] >> in / 64 * 4 & 15,
                  high = b[128 + half * 32 + in % 32] >> in / 32 * 2 & 3;
        const float dl = d * (float)as_signed(b[192 + i / 16]);
        out[i] = dl * (float)((low | high << 4) - 32);
    }
}

static void read_large(kvd_packing packing, const unsigned char *block, float *out)
{
    if (packing == KVD_Q2_K)
        read_q2_k(block, out);
    else if (packing == KVD_Q3_K)
        read_q3_k(block, out);
    else if (packing == KVD_Q6_K)
        read_q6_k(block, out);
    else
        read_q4_k_q5_k(block, packing == KVD_Q5_K, out);
}

void kvd_block_read(kvd_packing packing, const unsigned char *block, size_t first, size_t n,
                    float *out)
{
    float whole[KVD_BLOCK_MOST];
    assert(first + n <= layouts[packing].elements);
    if (packing == KVD_MXFP4) {
        const float d = power(block[0]);
        for (size_t i = 0; i < n; i++)
            out[i] = d * e2m1[nibble(block + 1, first + i)];
    } else if (layouts[packing].elements == SMALL) {
        const float d = f16(block);
        for (size_t i = 0; i < n; i++)
            out[i] = small_value(packing, block, d, first + i);
    } else if (n == LARGE) {
        read_large(packing, block, out);
    } else {
        read_large(packing, block, whole);
        memcpy(out, whole + first, n * sizeof *out);
    }
}

const char *kvd_tensor_type_name(const kvd_tensor *t)
{
    const kvd_block_layout *const layout = kvd_block_layout_of(t->packing);
    if (layout)
        return layout->name;
    return t->packing == KVD_RANDOM ? "random" : kvd_dtype_name(t->dtype);
}

size_t kvd_tensor_bytes(const kvd_tensor *t, size_t n)
{
    const kvd_block_layout *const layout = kvd_block_layout_of(t->packing);
    if (layout)
        return n / layout->elements * layout->bytes;
    return t->packing == KVD_RANDOM ? 0 : n * kvd_dtype_bytes(t->dtype);
}

int kvd_tensor_take_slice(kvd_tensor *t, size_t n, size_t at, kvd_err *err)
{
    if (t->rank < 2)
        return kvd_fail(err, "'%s': tensor '%s' has one dimension, not one for each expert",
                        t->file, t->name);
    if (t->dims[0] != n)
        return kvd_fail(err, "'%s': tensor '%s' has %zu experts, the configuration needs %zu",
                        t->file, t->name, t->dims[0], n);
    t->n /= n;
    t->data = (const unsigned char *)t->data + at * kvd_tensor_bytes(t, t->n);
    t->rank--;
    memmove(t->dims, t->dims + 1, (KVD_TENSOR_RANK - 1) * sizeof *t->dims);
    return 0;
}

static void read_stored(const kvd_tensor *t, size_t first, size_t n, float *out)
{
    const unsigned char *data = t->data;
    if (t->packing == KVD_RANDOM) {
        kvd_random_read(&t->random, first, n, out);
        return;
    }
    if (t->packing == KVD_PLAIN) {
        kvd_to_f32(t->dtype, data + first * kvd_dtype_bytes(t->dtype), out, n);
        return;
    }
    const kvd_block_layout *const layout = kvd_block_layout_of(t->packing);
    while (n > 0) {
        const size_t in = first % layout->elements, left = layout->elements - in,
                     now = left < n ? left : n;
        const size_t block = first / layout->elements;
        if (t->packing == KVD_MXFP4_APART)
            kvd_mxfp4_read(data + block * layout->bytes, t->scales[block], in, now, out);
        else
            kvd_block_read(t->packing, data + block * layout->bytes, in, now, out);
        first += now;
        out += now;
        n -= now;
    }
}

static size_t stored_row(const kvd_tensor *t, size_t row)
{
    const size_t d = t->d_head, q = t->group * d;
    if (t->order == KVD_ROWS_IN_PAIRS) {
        const size_t in = row % d;
        return row - in + (in < d / 2 ? 2 * in : 2 * (in - d / 2) + 1);
    }
    const size_t head = row / (q + 2 * d), in = row % (q + 2 * d);
    if (in < q)
        return head * q + in;
    const size_t keys = t->n_kv_heads * q, values = keys + t->n_kv_heads * d;
    return in < q + d ? keys + head * d + in - q : values + head * d + in - q - d;
}

void kvd_tensor_read(const kvd_tensor *t, size_t first, size_t n, float *out)
{
    if (t->order == KVD_ROWS_IN_ORDER) {
        read_stored(t, first, n, out);
        return;
    }
    const size_t cols = t->rank > 1 ? t->dims[1] : 1;
    if (t->order == KVD_ROWS_AS_COLUMNS) {
        for (size_t i = first; i < first + n; i++)
            read_stored(t, i % cols * t->dims[0] + i / cols, 1, out + (i - first));
        return;
    }
    while (n > 0) {
        const size_t col = first % cols, left = cols - col, now = left < n ? left : n;
        read_stored(t, stored_row(t, first / cols) * cols + col, now, out);
        first += now;
        out += now;
        n -= now;
    }
}
