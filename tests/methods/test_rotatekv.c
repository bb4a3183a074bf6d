/* Compares the method rotatekv with products of dense rotation matrices. */
#include "calibration_dump.h"
#include "code_rows.h"

enum { N = 300, WIDE = HEADS * D };

/* Computes w, the Walsh-Hadamard transform of each group of `each` numbers in v. */
static void multiply(const double *v, size_t n, size_t each, double *w)
{
    for (size_t i = 0; i < n; i++) {
        w[i] = 0;
        for (size_t j = 0; j < each; j++) {
            const int sign = __builtin_popcountll((i % each) & j) % 2 ? -1 : 1;
            w[i] += sign * v[i - i % each + j] / sqrt((double)each);
        }
    }
}

static void quantise(double *v, size_t n, int bits, double clip)
{
    double lo = INFINITY, hi = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        lo = fmin(lo, v[i]);
        hi = fmax(hi, v[i]);
    }
    const double s = clip * (hi - lo) / ((1 << bits) - 1), z = rint(-clip * lo / s);
    for (size_t i = 0; i < n; i++)
        v[i] = s * (fmin(fmax(rint(v[i] / s) + z, 0), (1 << bits) - 1) - z);
}

static size_t rotated_apart(const char *text, kvd_side side, size_t heads, size_t group, int bits,
                            double clip, kvd_bits_count *count, double *error)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    static float rows[N * WIDE], decoded[N * WIDE];
    double sum[WIDE] = {0}, rotated[WIDE];
    size_t apart = 0;
    rows_side_by_side(side == KVD_KEYS ? KVD_X_K_PRE : KVD_X_V, 1, N, rows);
    for (uint32_t t = 0; t < N; t++)
        for (size_t j = 0; j < WIDE; j++)
            sum[j] += (double)rows[t * WIDE + j];
    multiply(sum, WIDE, heads * D, rotated);
    const kvd_bits_block b = {
        .side = side, .layer = 1, .n = N, .d = WIDE, .x = rows, .prompt = true};
    code_rows(text, &setup, b, decoded, count);
    *error = 0;
    for (size_t t = 0; t < N; t++) {
        double v[WIDE], w[WIDE], ordered[WIDE];
        for (size_t j = 0; j < WIDE; j++)
            v[j] = (double)rows[t * WIDE + j];
        multiply(v, WIDE, heads * D, w);
        size_t place[WIDE];
        for (size_t j = 0; j < WIDE; j++) {
            place[j] = 0;
            for (size_t i = 0; i < WIDE; i++)
                place[j] += rotated[i] < rotated[j];
            place[j] = side == KVD_KEYS ? place[j] : j;
            ordered[place[j]] = w[j];
        }
        for (size_t at = 0; at < WIDE; at += group)
            quantise(ordered + at, group, bits, clip);
        for (size_t j = 0; j < WIDE; j++)
            w[j] = ordered[place[j]];
        multiply(w, WIDE, heads * D, v);
        double diff = 0, norm = 0;
        for (size_t j = 0; j < WIDE; j++) {
            diff += pow((double)decoded[t * WIDE + j] - v[j], 2);
            norm += v[j] * v[j];
            *error += pow((double)decoded[t * WIDE + j] - (double)rows[t * WIDE + j], 2);
        }
        /* Counts vectors that differ from the expected vector by more than the rounding of scales
         * can explain. */
        apart += diff > 1e-5 * norm;
    }
    return apart;
}

/* Numbers nearly halfway between two levels may be rounded to either, so a few may differ from
 * those that the test computes. */
TEST(rotations)
{
    kvd_bits_count count;
    double error[4];
    assert_true(rotated_apart("rotatekv,bits=4,sink=0", KVD_KEYS, 2, 16, 4, 1, &count, &error[0]) <
                N / 20);
    assert_true(count.payload == 4.0 * N * WIDE && count.side == 32.0 * N);
    assert_true(rotated_apart("rotatekv,bits=4,sink=0,group=8", KVD_KEYS, 2, 8, 4, 1, &count,
                              &error[1]) < N / 20);
    assert_true(count.side == 64.0 * N && error[1] < error[0]);
    assert_true(rotated_apart("rotatekv,bits=2,sink=0,heads=1", KVD_KEYS, 1, 16, 2, 0.8, &count,
                              &error[2]) < N / 20);
    assert_true(error[2] > error[0]);
    assert_true(rotated_apart("rotatekv,bits=3,sink=0", KVD_VALUES, 1, 8, 3, 1, &count, &error[0]) <
                N / 20);
    assert_true(count.payload == 3.0 * N * WIDE && count.side == 64.0 * N);
    (void)rotated_apart("rotatekv,bits=8,sink=0", KVD_KEYS, 2, 16, 8, 1, &count, &error[3]);
    assert_true(error[3] < 1e-3 * error[2]);
    (void)rotated_apart("rotatekv,bits=3,sink=300", KVD_KEYS, 2, 16, 3, 1, &count, &error[3]);
    assert_true(count.side == 0 && count.payload == 16.0 * N * WIDE && error[3] < 1e-4 * error[2]);
}

TEST_MAIN_WITH_DUMP(N)
