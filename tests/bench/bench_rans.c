/* Times rANS coding and DEFLATE on one thread, with normally distributed symbols of 64 channels. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "common/clock.h"
#include "common/rng.h"
#include "methods/bits/rans.h"

enum { TABLES = 64, N = 1 << 18, REPEATS = 9 };
static uint8_t symbol[N], got[N], out[2 * N + 1024];
static uint16_t context[N];

static int rising(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x)
{
    qsort(x, REPEATS, sizeof *x, rising);
    return x[REPEATS / 2] / N * 1e9;
}

static void check(int wrong, const char *what)
{
    if (wrong) {
        fprintf(stderr, "bench_rans: %s\n", what);
        exit(1);
    }
}

static void measure(double width)
{
    static kvd_rans_table table[TABLES];
    static uint64_t count[TABLES][KVD_RANS_SYMBOLS];
    double write[REPEATS], read[REPEATS], deflated[REPEATS], inflated[REPEATS], entropy = 0;
    kvd_rng r;
    kvd_err err = {""};
    size_t bytes = 0;
    uLongf small = 0;
    memset(count, 0, sizeof count);
    kvd_rng_seed(&r, 1, 1);
    for (size_t i = 0; i < N; i++) {
        context[i] = (uint16_t)(i % TABLES);
        const double x = kvd_rng_normal(&r) * width * (0.5 + (double)context[i] / TABLES);
        symbol[i] = (uint8_t)fmin(fmax(rint(x) + 127, 0), 254);
        count[context[i]][symbol[i]]++;
    }
    for (int k = 0; k < TABLES; k++) {
        kvd_rans_table_make(&table[k], count[k], KVD_RANS_SYMBOLS);
        for (int s = 0; s < KVD_RANS_SYMBOLS; s++)
            entropy -= count[k][s]
                           ? (double)count[k][s] * log2((double)count[k][s] / ((double)N / TABLES))
                           : 0;
    }
    for (int i = 0; i < REPEATS; i++) {
        double at = kvd_clock_s();
        check(kvd_rans_encode(table, context, symbol, N, out, &bytes, &err), err.msg);
        write[i] = kvd_clock_s() - at;
        at = kvd_clock_s();
        check(kvd_rans_decode(table, context, out, bytes, got, N, &err), err.msg);
        read[i] = kvd_clock_s() - at;
        check(memcmp(got, symbol, N), "other symbols were read");
        small = sizeof out;
        at = kvd_clock_s();
        check(compress2(out, &small, symbol, N, 6), "compress2");
        deflated[i] = kvd_clock_s() - at;
        uLongf whole = N;
        at = kvd_clock_s();
        check(uncompress(got, &whole, out, small), "uncompress");
        inflated[i] = kvd_clock_s() - at;
    }
    printf("%6.3f  %6.3f %7.2f %7.2f   %6.3f %7.2f %7.2f\n", entropy / N, 8 * (double)bytes / N,
           median(write), median(read), 8 * (double)small / N, median(deflated), median(inflated));
}

int main(void)
{
    puts("entropy   rANS  write ns read ns  DEFLATE write ns read ns   (bits and time per symbol)");
    for (double width = 0.25; width < 20; width *= 2)
        measure(width);
    return 0;
}
