/* usage: tool_flip FILE SEED
 *
 * Flips one bit of the file, chosen by SEED. A second call restores the bit. */
#include <stdio.h>
#include <stdlib.h>

#include "common/rng.h"

int main(int argc, char **argv)
{
    kvd_rng rng;
    FILE *const f = argc == 3 ? fopen(argv[1], "r+b") : NULL;
    if (!f || fseek(f, 0, SEEK_END)) {
        fprintf(stderr, "usage: tool_flip FILE SEED\n");
        return 2;
    }
    const long n = ftell(f);
    kvd_rng_seed(&rng, strtoull(argv[2], NULL, 10), 0);
    const long bit = (long)(kvd_rng_uniform(&rng) * 8 * (double)n), at = bit / 8;
    int c = EOF;
    if (n < 1 || fseek(f, at, SEEK_SET) || (c = fgetc(f)) == EOF || fseek(f, at, SEEK_SET) ||
        fputc(c ^ 1 << bit % 8, f) == EOF || fclose(f)) {
        fprintf(stderr, "tool_flip: cannot change '%s'\n", argv[1]);
        return 1;
    }
    printf("bit %ld of byte %ld\n", bit % 8, at);
    return 0;
}
